//! Code by which a program may limit itself so that a probe which does not know would kill it: system calls that set filters or
//! segment bases, and instructions that set the GS base. What happens there is in the agent's limits.rs.
//!
//! Most of a library's `syscall` instructions have their number right before them:
//!
//! ```text
//!   mov eax, 39          a constant, and nobody jumps in between: not watched
//!   syscall
//!   mov eax, edi         known only when it runs: watched, unless its address is known to the program
//!   syscall
//! ```

use crate::image::Image;
use crate::insn::decoder;
use crate::kernel;
use crate::targets::Targets;
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use std::cell::OnceCell;
use std::collections::HashSet;
use thalweg_symbols::{FunctionKind, Module};

/// clone, ptrace, prctl, arch_prctl, seccomp, clone3.
const WATCHED: [u32; 6] = [56, 101, 157, 158, 317, 435];
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// A function with system calls that are to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Index in the module's functions.
    pub function: usize,
    /// Addresses of the `syscall` instructions.
    pub sites: Vec<u64>,
}

/// The system calls of a module whose number may be one of those that limit a program.
pub fn watched(module: &Module) -> Vec<Watched> {
    let image = Image::new(module);
    let found = candidates(&image, |bytes| bytes.windows(2).any(|pair| pair == SYSCALL));
    let targets = OnceCell::new();
    let sites = |function: usize| Watched {
        function,
        sites: sites(&image, &targets, function),
    };
    found
        .into_iter()
        .map(sites)
        .filter(|one| !one.sites.is_empty())
        .collect()
}

/// Functions with an instruction that sets the GS base or loads its selector.
pub fn set_gs_base(module: &Module) -> Vec<usize> {
    let image = Image::new(module);
    let sets = |instruction: &Instruction| {
        let to_gs = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::GS;
        match instruction.mnemonic() {
            Mnemonic::Wrgsbase | Mnemonic::Lgs => true,
            Mnemonic::Mov | Mnemonic::Pop => to_gs,
            _ => false,
        }
    };
    let may = |bytes: &[u8]| {
        bytes.windows(3).any(|three| match *three {
            [0x0f, 0xae, modrm] => modrm & 0xf8 == 0xd8,
            [0x0f, 0xa9 | 0xb5, _] => true,
            [0x8e, modrm, _] => modrm & 0x38 == 0x28,
            _ => false,
        })
    };
    candidates(&image, may)
        .into_iter()
        .filter(|&function| decoded(&image, function).any(|instruction| sets(&instruction)))
        .collect()
}

fn candidates(image: &Image, may: impl Fn(&[u8]) -> bool) -> Vec<usize> {
    let functions = image.module.functions.iter().enumerate();
    functions
        .filter(|(_, function)| {
            let bytes = image.code_range(function.start, function.end);
            function.kind != FunctionKind::Plt && bytes.is_some_and(&may)
        })
        .map(|(index, _)| index)
        .collect()
}

/// The instructions of a function, one behind the other.
fn decoded<'a>(image: &'a Image, function: usize) -> impl Iterator<Item = Instruction> + 'a {
    let f = &image.module.functions[function];
    let (mut at, end) = (f.start, f.end);
    let bytes = image.code_at(at).unwrap_or_default();
    let mut decoder = decoder(bytes, at);
    std::iter::from_fn(move || {
        while at < end && decoder.can_decode() {
            let instruction = decoder.decode();
            if !instruction.is_invalid() {
                at += instruction.len() as u64;
                return Some(instruction);
            }
            // At the next byte, as nothing is known of this one.
            at += 1;
            decoder.set_position((at - f.start) as usize).ok()?;
            decoder.set_ip(at);
        }
        None
    })
}

/// The system calls of one function that are to be watched.
fn sites(image: &Image, targets: &OnceCell<Targets>, function: usize) -> Vec<u64> {
    let mut found = by_order(image, function);
    if found.iter().all(|(_, number)| number.is_some()) {
        found.retain(|(_, number)| number.is_some_and(|number| WATCHED.contains(&number)));
    } else if let Some(numbers) = kernel::numbers(image, targets, function) {
        let may_limit = |site: &u64| {
            numbers.get(site).is_none_or(|numbers| {
                let mut numbers = numbers.iter();
                numbers.any(|number| number.is_none_or(|number| WATCHED.contains(&number)))
            })
        };
        found.retain(|(site, _)| may_limit(site));
    } else {
        found.retain(|(_, number)| number.is_none_or(|number| WATCHED.contains(&number)));
    }
    found.into_iter().map(|(site, _)| site).collect()
}

/// The system calls of one function, each with its number where that is a constant however one came there: cheap, and enough for
/// most.
fn by_order(image: &Image, function: usize) -> Vec<(u64, Option<u32>)> {
    let instructions: Vec<Instruction> = decoded(image, function).collect();
    if !instructions.iter().any(is_system_call) {
        return Vec::new();
    }
    let branches = instructions.iter().filter(|i| {
        matches!(
            i.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        )
    });
    let entered: HashSet<u64> = branches.map(|i| i.near_branch_target()).collect();
    let mut info = InstructionInfoFactory::new();
    let mut number = None;
    let mut found = Vec::new();
    for instruction in &instructions {
        if entered.contains(&instruction.ip()) {
            number = None;
        }
        if is_system_call(instruction) {
            found.push((instruction.ip(), number));
            number = None;
            continue;
        }
        number = after(instruction, number, &mut info);
    }
    found
}

fn is_system_call(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Syscall
}

/// What eax holds behind the instruction.
fn after(
    instruction: &Instruction,
    before: Option<u32>,
    info: &mut InstructionInfoFactory,
) -> Option<u32> {
    let to = (instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register)
        .then(|| instruction.op0_register());
    let is_eax = matches!(to, Some(Register::EAX | Register::RAX));
    match instruction.mnemonic() {
        Mnemonic::Mov if is_eax && is_immediate(instruction) => {
            return Some(instruction.immediate(1) as u32);
        }
        Mnemonic::Mov if to == Some(Register::AL) && is_immediate(instruction) => {
            return before.map(|value| value & !0xff | instruction.immediate(1) as u32 & 0xff);
        }
        Mnemonic::Xor if is_eax && instruction.op1_kind() == OpKind::Register => {
            return (instruction.op1_register() == instruction.op0_register()).then_some(0);
        }
        _ => {}
    }
    let is_call = matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    );
    let used = info.info(instruction).used_registers();
    let writes = used.iter().any(|used| {
        let reads = matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead
        );
        !reads && used.register().full_register() == Register::RAX
    });
    before.filter(|_| !writes && !is_call)
}

fn is_immediate(instruction: &Instruction) -> bool {
    matches!(
        instruction.op1_kind(),
        OpKind::Immediate8 | OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
    )
}

/// Whether the program knows the address behind a system call: one that can be cancelled there is told by the program counter, and
/// must stay as it is. No filter is set by those.
pub(crate) fn is_known(targets: &Targets, site: u64) -> bool {
    let behind = site + SYSCALL.len() as u64;
    targets.in_range(behind, behind + 1).contains(&behind)
}
