//! The call graph as a river: time flows from the start to where it is spent.
//!
//! ```text
//! profile -> river (what is shown) -> draw, with thalweg-graphics -> scene -> svg | png
//!                                  -> dot
//! ```

pub mod dot;
mod draw;
mod font;
mod marks;
pub mod png;
mod scene;
pub mod svg;
mod width;

pub use draw::{Style, draw};
pub use font::width as text_width;
pub use scene::Scene;
pub use width::Width;
