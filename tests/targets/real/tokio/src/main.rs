//! Echo servers and clients on a tokio runtime of four threads: tasks that move between threads, timers, channels, panics
//! that are caught. Prints the same line however often its tasks were moved.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Duration, sleep};

async fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 512];
    while let Ok(count) = stream.read(&mut buffer).await {
        if count == 0 || stream.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Sends numbers, checks that they come back, and gives their sum.
async fn client(port: u16, rounds: u64) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connect");
    let mut sum = 0;
    for number in 0..rounds {
        stream.write_all(&number.to_le_bytes()).await.expect("write");
        let mut back = [0; 8];
        stream.read_exact(&mut back).await.expect("read");
        assert_eq!(u64::from_le_bytes(back), number);
        sum += number;
        if number % 500 == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    sum
}

#[tokio::main(worker_threads = 4)]
async fn main() {
    let rounds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1000);
    std::panic::set_hook(Box::new(|_| {}));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(echo(stream));
        }
    });
    let (sender, mut receiver) = mpsc::channel(4);
    for _ in 0..16 {
        let sender = sender.clone();
        tokio::spawn(async move { sender.send(client(port, rounds).await).await });
    }
    drop(sender);
    let mut total = 0;
    while let Some(sum) = receiver.recv().await {
        total += sum;
    }
    let mut caught = 0;
    for number in 0..100 {
        let task = tokio::spawn(async move { assert!(number % 3 != 0) });
        caught += u32::from(task.await.is_err());
    }
    println!("total {total}, {caught} panics caught");
}
