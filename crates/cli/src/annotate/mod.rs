//! Source and assembler with how often they ran.
//!
//! ```text
//! code     a profile's blocks -> their instructions and lines, from the files of its modules
//! choose   what the user named -> functions, or lines of a file
//! source   lines with counts, block extents in the margin
//! asm      instructions with counts, branches with both ways, source beside them
//! list     what there is to annotate, and what never ran
//! system_calls  by what is known of their cost
//! ```

mod asm;
mod choose;
mod code;
mod json;
mod list;
mod source;
mod system_calls;

pub use asm::print_asm;
pub use choose::{Chosen, choose};
pub use code::{read, read_all};
pub use json::print_json;
pub use list::{print_list, print_never};
pub use source::print_source;
pub use system_calls::{print_system_calls, print_system_calls_json};
