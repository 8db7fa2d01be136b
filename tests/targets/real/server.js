// Answers every request with "hello", by way of the event loop or of the thread pool. Its argument is the port.
const http = require("http"), crypto = require("crypto"), zlib = require("zlib");
let count = 0;
http.createServer((request, response) => {
  count++;
  if (count % 50 === 0) crypto.pbkdf2("a", "b", 100, 32, "sha256", () => response.end("hello"));
  else if (count % 17 === 0) zlib.gzip("x".repeat(5000), () => response.end("hello"));
  else response.end("hello");
}).listen(Number(process.argv[2]), "127.0.0.1");
process.on("SIGTERM", () => process.exit(0));
