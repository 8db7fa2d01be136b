//! For `derive`: `tables forms` prints one instruction of each form, as number and bytes; `tables pack` makes a table of what
//! LLVM says of them.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};

use iced_x86::{Decoder, DecoderOptions, Instruction};
use thalweg_cycles::{Class, Form, Table, form};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("forms") => forms()?,
        Some("pack") => pack()?,
        _ => return Err("usage: tables forms | tables pack".into()),
    }
    Ok(())
}

/// All bytes with which an instruction may begin, up to its operands: prefixes and opcode.
fn heads() -> Vec<Vec<u8>> {
    let mut heads = Vec::new();
    for prefix in [&[][..], &[0x66], &[0xf3], &[0xf2], &[0xf0]] {
        for wide in [&[][..], &[0x48]] {
            for map in [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]] {
                for opcode in 0..=255 {
                    heads.push([prefix, wide, map, &[opcode]].concat());
                }
            }
        }
    }
    for operand in [0b1010u8, 0b0001, 0b1111] {
        for opcode in 0..=255 {
            for pp in 0..4u8 {
                for w in [0u8, 0x80] {
                    for map in 1..=3u8 {
                        for length in [0u8, 4] {
                            let last = w | (operand << 3) | length | pp;
                            heads.push(vec![0xc4, 0xe0 | map, last, opcode]);
                        }
                    }
                    for map in [1u8, 2, 3, 5, 6] {
                        for length in 0..3u8 {
                            for mask in [0u8, 1] {
                                let second = w | (operand << 3) | 4 | pp;
                                let third = (length << 5) | 8 | mask;
                                heads.push(vec![0x62, 0xf0 | map, second, third, opcode]);
                            }
                        }
                    }
                }
            }
        }
    }
    heads
}

/// What follows an opcode: nothing, registers, memory, and for `lea` all kinds of addresses.
fn operands() -> Vec<Vec<u8>> {
    let mut all = vec![vec![]];
    for reg in 0..8u8 {
        // Other registers than each other's, the first ones; then the same.
        all.push(vec![0xc0 | (reg << 3) | ((reg + 1) % 8)]);
        all.push(vec![0xc0 | (reg << 3) | reg]);
        all.push(vec![0xc0 | (reg << 3) | 0b001]);
        all.push(vec![(reg << 3) | 3]);
        all.push(vec![(reg << 3) | 4, 0x33]);
    }
    for displacement in [0u8, 8] {
        for base in [3u8, 5] {
            all.push(vec![0x40 | base, displacement]);
            for scale in [0u8, 1] {
                all.push(vec![0x44, (scale << 6) | (1 << 3) | base, displacement]);
            }
        }
        for scale in [0u8, 1] {
            let sib = (scale << 6) | (1 << 3) | 5;
            all.push(vec![0x04, sib, displacement, 0, 0, 0]);
            all.push(vec![0x04, 0x25, displacement, 0, 0, 0]);
        }
        all.push(vec![0x05, displacement, 0, 0, 0]);
    }
    all
}

fn forms() -> io::Result<()> {
    let mut found: BTreeMap<Form, Vec<u8>> = BTreeMap::new();
    let operands = operands();
    // Where the registers are part of the opcode: x87, and what the system has put there.
    let all: Vec<Vec<u8>> = (0xc0..=0xff).map(|operand| vec![operand]).collect();
    for head in heads() {
        let has_more = matches!(head[..], [0xd8..=0xdf] | [.., 0x0f, 0x01 | 0xae]);
        let more = all.iter().filter(|_| has_more);
        for operand in operands.iter().chain(more) {
            let mut bytes = [head.as_slice(), operand].concat();
            bytes.resize(bytes.len() + 9, 0);
            let mut decoder = Decoder::new(64, &bytes, DecoderOptions::NONE);
            let mut instruction = Instruction::default();
            decoder.decode_out(&mut instruction);
            if !instruction.is_invalid() {
                let own = bytes[..instruction.len()].to_vec();
                let kept = found
                    .entry(form(&instruction))
                    .or_insert_with(|| own.clone());
                // The shortest has the fewest prefixes that mean nothing.
                if own.len() < kept.len() {
                    *kept = own;
                }
            }
        }
    }
    let mut out = io::stdout().lock();
    for (form, bytes) in found {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(out, "{} {}", form.number(), hex.join(" "))?;
    }
    Ok(())
}

fn pack() -> Result<(), Box<dyn std::error::Error>> {
    let (mut width, mut units) = (0, Vec::new());
    let mut all: BTreeMap<Form, Class> = BTreeMap::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match words.next() {
            Some("width") => width = words.next().ok_or("no width")?.parse()?,
            Some("units") => units = words.map(str::parse).collect::<Result<_, _>>()?,
            Some(number) => {
                let mut next = || -> Result<u32, Box<dyn std::error::Error>> {
                    Ok(words.next().ok_or("a line is cut")?.parse()?)
                };
                let mut class = Class {
                    uops: next()?,
                    latency: next()?,
                    advance: next()?,
                    uses: Vec::new(),
                };
                for word in words {
                    let (resource, cycles) = word.split_once(':').ok_or("no resource")?;
                    class.uses.push((resource.parse()?, cycles.parse()?));
                }
                all.insert(Form::from_number(number.parse()?), class);
            }
            None => {}
        }
    }
    let mut classes: Vec<Class> = all.values().cloned().collect();
    classes.sort();
    classes.dedup();
    let mut forms = Vec::new();
    for (&form, class) in &all {
        // Told apart only where it differs.
        if form == form.plain() || all.get(&form.plain()) != Some(class) {
            let number = classes
                .binary_search(class)
                .map_err(|_| "a class is lost")?;
            forms.push((form, number as u32));
        }
    }
    eprintln!("{} forms, {} classes", forms.len(), classes.len());
    let table = Table::new(width, units, classes, forms);
    io::stdout().write_all(&table.pack())?;
    Ok(())
}
