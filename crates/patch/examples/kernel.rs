//! Which functions of files enter the kernel, and how often each call of them does.

use thalweg_patch::enters_kernel;
use thalweg_symbols::Module;

fn main() {
    for path in std::env::args().skip(1) {
        let module = match Module::load(path.as_ref()) {
            Ok(module) => module,
            Err(error) => {
                eprintln!("{path}: {error}");
                std::process::exit(2);
            }
        };
        for one in enters_kernel(&module) {
            println!("{}: {:?}", module.functions[one.function].name, one.made);
        }
    }
}
