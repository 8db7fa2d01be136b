//! Exception tables: the landing pads, which only the unwinder jumps to.

use crate::bytes::Cursor;
use crate::elf::Elf;

const OMIT: u8 = 0xff;

/// Adds the landing pads in the table at `lsda`, which belongs to the code that starts at
/// `function`.
pub(crate) fn landing_pads(
    elf: &Elf<'_>,
    lsda: u64,
    function: u64,
    out: &mut Vec<u64>,
) -> Option<()> {
    let mut cursor = Cursor::new(elf.bytes_from(lsda)?);
    let base = match cursor.u8()? {
        OMIT => function,
        encoding => encoded(elf, &mut cursor, encoding, lsda, function)?,
    };
    if cursor.u8()? != OMIT {
        cursor.uleb128()?;
    }
    let encoding = cursor.u8()?;
    let length = usize::try_from(cursor.uleb128()?).ok()?;
    let end = cursor.position.checked_add(length)?;
    while cursor.position < end {
        encoded(elf, &mut cursor, encoding, lsda, function)?;
        encoded(elf, &mut cursor, encoding, lsda, function)?;
        let pad = encoded(elf, &mut cursor, encoding, lsda, function)?;
        cursor.uleb128()?;
        if pad != 0 {
            out.push(base.wrapping_add(pad));
        }
    }
    Some(())
}

/// A pointer in one of the DW_EH_PE encodings. `at` is the address of the cursor's first byte.
fn encoded(
    elf: &Elf<'_>,
    cursor: &mut Cursor<'_>,
    encoding: u8,
    at: u64,
    function: u64,
) -> Option<u64> {
    let here = at.wrapping_add(cursor.position as u64);
    let value = match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => cursor.u64()?,
        0x01 => cursor.uleb128()?,
        0x02 => u64::from(cursor.u16()?),
        0x03 => u64::from(cursor.u32()?),
        0x09 => cursor.sleb128()? as u64,
        0x0a => i64::from(cursor.u16()? as i16) as u64,
        0x0b => i64::from(cursor.u32()? as i32) as u64,
        _ => return None,
    };
    let value = match encoding & 0x70 {
        0x00 => value,
        0x10 => value.wrapping_add(here),
        0x20 => value.wrapping_add(elf.section_range(".text")?.start),
        0x30 => value.wrapping_add(elf.section_range(".got")?.start),
        0x40 => value.wrapping_add(function),
        _ => return None,
    };
    if encoding & 0x80 == 0 {
        return Some(value);
    }
    crate::bytes::u64_at(elf.bytes(value, 8)?, 0)
}
