//! What functions are written in, as far as that decides how they are shown.

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::profile::Function;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// Machine code in a file: C, C++, Rust and all others that are compiled ahead of time.
    #[default]
    Native,
    Go,
    Python,
    Java,
}

impl Language {
    const ALL: [Language; 4] = [
        Language::Native,
        Language::Go,
        Language::Python,
        Language::Java,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Language::Native => "native",
            Language::Go => "go",
            Language::Python => "python",
            Language::Java => "java",
        }
    }
}

/// Of each function that is not native: how many were passed over, and its language.
pub(crate) fn encode(functions: &[Function], out: &mut Encoder) {
    let mut passed = 0;
    for function in functions {
        match function.language {
            Language::Native => passed += 1,
            language => {
                out.number(passed);
                out.byte(language as u8);
                passed = 0;
            }
        }
    }
}

pub(crate) fn decode(functions: &mut [Function], input: &mut Decoder) -> Result<(), ReadError> {
    let mut functions = functions.iter_mut();
    while !input.is_at_end() {
        let passed = usize::try_from(input.number()?).ok();
        let language = usize::from(input.byte()?);
        let function = passed.and_then(|passed| functions.nth(passed));
        let function = function.ok_or(ReadError::Corrupt(
            "a function that does not exist has a language",
        ))?;
        let language = Language::ALL.get(language);
        function.language = *language.ok_or(ReadError::Corrupt(
            "a function is in a language that is not known",
        ))?;
    }
    Ok(())
}
