//! What a ring's records say. Nothing of it is believed: a record that is not as it should be says nothing.

use perf_event_open_sys::bindings as perf;

use thalweg_symbols::AllRegisters;

use super::event::DWARF_NUMBERS;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    Look(Look<'a>),
    /// So many records found no room.
    Lost(u64),
    /// A thread was made, by one that is looked at.
    Began {
        pid: u32,
        tid: u32,
    },
    Ended {
        pid: u32,
        tid: u32,
    },
    /// Code of a file was mapped.
    Mapped {
        pid: u32,
    },
}

/// A thread at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look<'a> {
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// Of the monotonic clock.
    pub(super) time_ns: u64,
    /// `None` where it had none of its own.
    pub(super) registers: Option<AllRegisters>,
    /// What could be copied, from the stack pointer on.
    pub(super) stack: &'a [u8],
}

impl Look<'_> {
    /// A word of the stack.
    pub(super) fn word(&self, sp: u64, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(sp)?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(head)
    }

    fn half(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn word(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// `None`: of no interest, or not as the kernel writes it.
pub(super) fn parse(kind: u32, bytes: &[u8]) -> Option<Record<'_>> {
    let mut fields = Fields(bytes);
    match kind {
        perf::PERF_RECORD_SAMPLE => look(fields).map(Record::Look),
        perf::PERF_RECORD_LOST => {
            fields.word()?;
            fields.word().map(Record::Lost)
        }
        perf::PERF_RECORD_FORK | perf::PERF_RECORD_EXIT => {
            let (pid, _parent, tid) = (fields.half()?, fields.half()?, fields.half()?);
            Some(match kind {
                perf::PERF_RECORD_FORK => Record::Began { pid, tid },
                _ => Record::Ended { pid, tid },
            })
        }
        perf::PERF_RECORD_MMAP => {
            let pid = fields.half()?;
            fields.half()?;
            fields.take(24)?;
            // What no file is behind has another beginning.
            let of_a_file = fields.0.starts_with(b"/") && !fields.0.starts_with(b"//");
            of_a_file.then_some(Record::Mapped { pid })
        }
        _ => None,
    }
}

fn look(mut fields: Fields<'_>) -> Option<Look<'_>> {
    let (pid, tid, time_ns) = (fields.half()?, fields.half()?, fields.word()?);
    let registers = match u64::from(perf::PERF_SAMPLE_REGS_ABI_NONE) == fields.word()? {
        true => None,
        false => {
            let mut registers = [0; DWARF_NUMBERS.len()];
            for number in DWARF_NUMBERS {
                registers[number] = fields.word()?;
            }
            Some(registers)
        }
    };
    let copied = fields.word()?;
    let stack = fields.take(copied)?;
    let of_use = match copied {
        0 => 0,
        _ => fields.word()?,
    };
    let of_use = usize::try_from(of_use).unwrap_or(usize::MAX);
    Some(Look {
        pid,
        tid,
        time_ns,
        registers,
        stack: &stack[..of_use.min(stack.len())],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(stack: &[u8], of_use: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(7u32.to_le_bytes());
        bytes.extend(8u32.to_le_bytes());
        bytes.extend(9u64.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        for register in 100..117u64 {
            bytes.extend(register.to_le_bytes());
        }
        bytes.extend((stack.len() as u64).to_le_bytes());
        bytes.extend(stack);
        bytes.extend(of_use.to_le_bytes());
        bytes
    }

    #[test]
    fn a_look_has_its_registers_where_unwind_information_wants_them_and_no_more_stack_than_was_copied()
     {
        let stack = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        let bytes = sample(&stack, 8);
        let Some(Record::Look(look)) = parse(perf::PERF_RECORD_SAMPLE, &bytes) else {
            panic!("no look");
        };
        assert_eq!((look.pid, look.tid, look.time_ns), (7, 8, 9));
        let registers = look.registers.unwrap();
        // rax, rdx, rsp, rip, r8, r15
        let some = [0, 1, 7, 16, 8, 15].map(|number| registers[number]);
        assert_eq!(some, [100, 103, 107, 108, 109, 116]);
        assert_eq!(look.word(107, 107), Some(1));
        assert_eq!(look.word(107, 115), None, "what was not copied is not read");
        assert_eq!(look.word(107, 106), None);
    }

    #[test]
    fn a_record_that_says_more_than_it_holds_says_nothing() {
        let good = sample(&[0; 64], u64::MAX);
        assert!(parse(perf::PERF_RECORD_SAMPLE, &good).is_some());
        for cut in 0..good.len() {
            assert_eq!(parse(perf::PERF_RECORD_SAMPLE, &good[..cut]), None);
        }
        let mut bad = good;
        // Eight bytes for numbers, eight for the time, eight for the kind of registers, and the registers.
        let size = 8 + 8 + 8 + 17 * 8;
        bad[size..size + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(parse(perf::PERF_RECORD_SAMPLE, &bad), None);
    }

    proptest! {
        #[test]
        fn no_record_is_read_beyond_its_end(kind in 0u32..20, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(Record::Look(look)) = parse(kind, &bytes) {
                prop_assert!(look.stack.len() <= bytes.len());
            }
        }
    }
}
