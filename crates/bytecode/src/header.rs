//! The head of a program: what the agent compares before it runs any code, and where the code is.

/// Bytes before the code.
pub const HEADER_SIZE: usize = 48;

const MAGIC: u16 = 0x7457;

/// Bits of `Header::flags`.
pub mod flags {
    /// The entry part has to run: the condition or a recorded value needs the entry.
    pub const NEEDS_ENTRY: u16 = 1;
    /// The exit part has to run: the condition or a recorded value needs the exit.
    pub const NEEDS_EXIT: u16 = 2;
    /// errno is asked for.
    pub const NEEDS_ERRNO: u16 = 4;
    /// xmm registers are asked for.
    pub const NEEDS_FLOATS: u16 = 8;
    /// The time on and off the processor are asked for.
    pub const NEEDS_WAITED: u16 = 16;
    /// The exception of a call that was left by one is asked for.
    pub const NEEDS_EXCEPTION: u16 = 32;
    /// The entry part asks for nothing but registers and who called, and decides nothing: it can
    /// run when the call ends, if they were saved.
    pub const CAN_WAIT: u16 = 64;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The rule's place in the list of rules.
    pub rule: u16,
    pub flags: u16,
    /// No shorter call is ever kept.
    pub min_total_ns: u64,
    /// Not more than so many calls are kept in all; 0: no such limit. The agent keeps count.
    pub first: u64,
    /// Not more than so many calls are kept in a second; 0: no such limit. The agent keeps count.
    pub per_second: u32,
    /// The most that entry and exit together write into `out`.
    pub max_out: u32,
    pub entry_len: u32,
    pub exit_len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadProgram;

impl Header {
    pub fn read(program: &[u8]) -> Result<Header, BadProgram> {
        let head = program.get(..HEADER_SIZE).ok_or(BadProgram)?;
        let header = Header {
            rule: u16_at(head, 2).ok_or(BadProgram)?,
            flags: u16_at(head, 4).ok_or(BadProgram)?,
            min_total_ns: u64_at(head, 8).ok_or(BadProgram)?,
            first: u64_at(head, 16).ok_or(BadProgram)?,
            per_second: u32_at(head, 24).ok_or(BadProgram)?,
            max_out: u32_at(head, 28).ok_or(BadProgram)?,
            entry_len: u32_at(head, 32).ok_or(BadProgram)?,
            exit_len: u32_at(head, 36).ok_or(BadProgram)?,
        };
        let code = u64::from(header.entry_len) + u64::from(header.exit_len);
        let fits = (program.len() as u64) >= HEADER_SIZE as u64 + code;
        if u16_at(head, 0) == Some(MAGIC) && fits {
            Ok(header)
        } else {
            Err(BadProgram)
        }
    }

    pub fn write(&self) -> [u8; HEADER_SIZE] {
        let mut head = [0; HEADER_SIZE];
        let mut put = |at: usize, bytes: &[u8]| {
            for (to, from) in head.iter_mut().skip(at).zip(bytes) {
                *to = *from;
            }
        };
        put(0, &MAGIC.to_le_bytes());
        put(2, &self.rule.to_le_bytes());
        put(4, &self.flags.to_le_bytes());
        put(8, &self.min_total_ns.to_le_bytes());
        put(16, &self.first.to_le_bytes());
        put(24, &self.per_second.to_le_bytes());
        put(28, &self.max_out.to_le_bytes());
        put(32, &self.entry_len.to_le_bytes());
        put(36, &self.exit_len.to_le_bytes());
        head
    }

    /// Header and code.
    pub fn program_len(&self) -> usize {
        HEADER_SIZE
            .saturating_add(self.entry_len as usize)
            .saturating_add(self.exit_len as usize)
    }

    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn entry_code<'p>(&self, program: &'p [u8]) -> &'p [u8] {
        let end = HEADER_SIZE.saturating_add(self.entry_len as usize);
        program.get(HEADER_SIZE..end).unwrap_or_default()
    }

    pub(crate) fn exit_code<'p>(&self, program: &'p [u8]) -> &'p [u8] {
        let start = HEADER_SIZE.saturating_add(self.entry_len as usize);
        program.get(start..self.program_len()).unwrap_or_default()
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    match bytes.get(at..at.checked_add(2)?)? {
        [a, b] => Some(u16::from_le_bytes([*a, *b])),
        _ => None,
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    match bytes.get(at..at.checked_add(4)?)? {
        [a, b, c, d] => Some(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    match bytes.get(at..at.checked_add(8)?)? {
        [a, b, c, d, e, f, g, h] => Some(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])),
        _ => None,
    }
}
