//! Counting every basic block: a function's code runs as a copy in a *cave*, with a counter in each block.
//!
//! Beside the patch planner on the way of the data: `Module` -> `plan` -> `BlockPlan` -> `emit` -> bytes that the controller
//! writes, in the form in which the patch planner gives its own. Nothing here touches a process.
//!
//! ```text
//!   at home                        in the cave
//!   f:  push rbx                   f':  inc qword ptr gs:[n]
//!       test edi, edi                   push rbx
//!       je   L                          test edi, edi
//!                                       je   L'
//!                                       inc qword ptr gs:[n+1]
//!       call g           <---------     jmp  home of the call
//!   r:  (jmp r')         --------->r':  inc qword ptr gs:[n+2]
//!   L:  ...                        L':  ...
//! ```
//!
//! Calls and system calls stay at home, so that no return address is ever ours; what follows them jumps back to the cave, as
//! does every place at home that something outside may jump to: entries, landing pads, targets of jump tables (tables stay as
//! they are). All other bytes at home are dead, which is the room for those jumps.
//!
//! A block ends at a jump, before a place that something jumps to, and behind a call: a call that does not return leaves no
//! count too many. Only where two calls stand so close that no jump fits between them are they one block.
#![forbid(unsafe_code)]

mod cave;
mod emit;
mod flags;
mod graph;
mod group;
mod listing;
mod plan;
mod points;
mod store;
mod tables;
mod verify;
mod walk;

pub use cave::{COUNT_BYTES, Encoder, Placement};
pub use emit::emit;
pub use listing::{Listed, listed};
pub use plan::{Block, BlockPlan, Ending, NotTaken, Others, plan};
pub use verify::{Verdict, verify};
