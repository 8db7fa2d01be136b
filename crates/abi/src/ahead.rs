//! What a copy made by `thalweg instrument` carries for the code that starts it: a head, and behind it tables that this names by
//! addresses as they are before the loader adds its bias.
//!
//! ```text
//! | head | program headers | header of the region | catalog | ledger | entries | places | modes | numbers | ~ page | agent | stubs | ~ page | start code |
//! |---------------------------- read only --------------------------------------------------|------------------ code ------------------------|
//! ```
//!
//! In the file all probes return at once, as in a process that has retired them: code that runs before the start code, or
//! where that cannot map the memory, does what it always did.

/// "twahead" and a format digit: the first word of the head.
pub const AHEAD_MAGIC: u64 = u64::from_le_bytes(*b"twahead1");
/// What the name of every region's file ends with.
pub const REGION_SUFFIX: &str = ".thalweg-region";
/// How long the name of the program may be in the file's name.
pub const AHEAD_NAME: usize = 64;

/// The file is a shared library.
pub const AHEAD_LIBRARY: u32 = 1;

#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    pub magic: u64,
    /// `VERSION`.
    pub version: u32,
    /// `AHEAD_` bits.
    pub flags: u32,
    /// Where this head is.
    pub own: u64,
    /// What goes on behind the start code: the program's entry, or the library's own initialiser; 0: none.
    pub original: u64,
    /// The agent's image, the stubs behind it, and how long both are: what is made writable for a moment.
    pub image: u64,
    pub code_len: u64,
    /// The header of the region, as far as it is known, of one page.
    pub header: u64,
    pub catalog: u64,
    pub ledger: u64,
    /// Addresses for the table of probed entries.
    pub entries: u64,
    pub entry_count: u64,
    /// `AheadPlace`: what probes and leaves begin with when they count.
    pub places: u64,
    pub place_count: u64,
    /// `AheadMode`: of functions that have a state of their own.
    pub modes: u64,
    pub mode_count: u64,
    /// Distances from the image of words that hold a function's number: it is known when the file is loaded.
    pub numbers: u64,
    pub number_count: u64,
    /// Beyond it no file is filled.
    pub memory: u64,
    /// The program's name, and zeroes.
    pub name: [u8; AHEAD_NAME],
}

/// An aligned word of the code.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AheadPlace {
    /// Distance from the image.
    pub at: u64,
    pub word: u64,
}

#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AheadMode {
    pub function: u32,
    /// Distance from the image of the byte that says how its calls are counted; 0: that cannot be told.
    pub mode: u32,
    /// As in `ProbeState`.
    pub flags: u32,
    pub reserved: u32,
}

/// What the number of a file's first function is a multiple of: the places of a callee in its caller's node go by the number's last six bits, and so
/// does which copy of a probe a stub calls.
pub const AHEAD_STEP: u32 = 64;
