//! Java methods: what stands in place of HotSpot's `dtrace_method_entry` and `_exit`, which its interpreter and its compiled
//! code call for each method (docs/design/managed.md).
//!
//! Both run in a thread in state `_thread_in_Java`, for which the machine waits at each safepoint: nothing here waits, prunes or
//! stops at a gate. Registers are those of a C call, so this is Rust from its first instruction on.
//!
//! ```text
//! entry    the frame's place is min(sp + SLACK, the place of the frame below), a multiple of 16. C's are never: they are
//!          8 more, since a call has pushed a return address. By that a Java frame is known.
//!          equal places      an inlined callee has its caller's stack pointer
//!          the slack         C code that compiled code calls may lie up to 88 bytes above where the probe was called
//! exit     the method on top, else the first one below it down to a C function that must still be active: entry and exit of
//!          one activation may differ in sp (on-stack replacement, deoptimisation)
//! ```
//!
//! An activation that an exception left without an exit (C1, inlined) is found behind by the next event further out.

use crate::claim;
use crate::clock;
use crate::dynamic::{self, Identity};
use crate::memory::{Slot, flags, ticks};
use crate::record::{self, Registers};
use crate::slow;
use crate::states;
use crate::tree::{self, Callee, Room};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::dynamic::{KIND_JAVA, RECORD_NATIVE, RECORD_STATIC};
use thalweg_abi::{Frame, Java};

/// How far above the probe's own call a callee of the same activation may lie.
const SLACK: u64 = 128;
/// How many frames an exit is searched for.
const SEARCHED: u32 = 4096;

#[unsafe(no_mangle)]
extern "C" fn tw_java_enters(_: u64, method: u64, sp: u64) {
    let Some(slot) = claim::current(sp) else {
        return;
    };
    let Some(function) = number(method) else {
        return;
    };
    let mode = mode(function);
    if mode == shm::PROBE_OFF {
        // SAFETY: the slot is this thread's own.
        unsafe { (*slot.shared()).off_calls += 1 };
        return;
    }
    // SAFETY: `slot` is this thread's own, so its frames and nodes are.
    unsafe {
        let timed = !is_untimed(slot, mode);
        let mut event = Event::of(slot, timed);
        let top = slot.top();
        let distance = shm::frame_sp((*top).key).wrapping_sub(sp + 1);
        let mut caller = top;
        if (*top).key == 0 || distance >= shm::WINDOW {
            slow::leave_behind(slot, sp, event.now());
            caller = slow::caller_at(slot, sp);
        }
        // What was switched off a moment after it began may have ended unseen, and is nobody's caller.
        while are_some_off() && is_java(slot, caller) && states::ends_unseen(slot, caller) {
            caller = caller.sub(1);
            slow::drop_above(slot, caller, event.now());
        }
        let place = place(slot, caller, sp);
        let callee = Callee { function, site: 0 };
        let (node, mark) = node_below(slot, caller, callee);
        let pushed = slow::push_node(slot, node, mark, place, event.or_last());
        if pushed && flags() & shm::HEADER_RECORDS != 0 && record::has_rules(function) {
            record::began(slot, function, sp, &Registers::None { sp });
        }
        if !timed && pushed {
            states::make_untimed(slot);
        }
        event.end();
    }
}

#[unsafe(no_mangle)]
extern "C" fn tw_java_leaves(_: u64, method: u64, sp: u64) {
    let Some(slot) = claim::current(sp) else {
        return;
    };
    let Some(function) = number(method) else {
        return;
    };
    // SAFETY: as in tw_java_enters.
    unsafe {
        let top = slot.top();
        let is_top = (*top).key != 0
            && is_java(slot, top)
            && slow::function_of((*top).node as *const shm::Node) == function;
        if mode(function) == shm::PROBE_OFF {
            // One that began before ends by its own exit; those that began since have no frame.
            if is_top && place(slot, top.sub(1), sp) == shm::frame_sp((*top).key) {
                let mut event = Event::of(slot, true);
                slow::leave(slot, event.now());
                event.end();
            }
            return;
        }
        let mut event = Event::of(slot, !is_top || (*top).start != 0);
        if is_top || find(slot, function, sp, event.now()) {
            slow::leave(slot, event.or_last());
        }
        event.end();
    }
}

/// `GraphKit::make_dtrace_method_entry_exit` is about to put a probe's call into compiled code. Not 0: it need not, because the
/// method is off, and stays so.
#[unsafe(no_mangle)]
extern "C" fn tw_java_compiles(_: u64, compiled: u64) -> u64 {
    let java = java();
    // SAFETY: the compiler's own object of a method that it compiles, which is not freed meanwhile.
    unsafe {
        if (&raw const (*java).state).read_volatile() != Java::READY
            || (*java).compiled_method == 0
            || compiled == 0
        {
            return 0;
        }
        let method = word(compiled, (*java).compiled_method);
        if method == 0 {
            return 0;
        }
        let function = dynamic::find(method, check(method));
        u64::from(function.is_some_and(|function| mode(function) == shm::PROBE_OFF))
    }
}

/// Where the frame of an activation lies that is called at `sp` by `caller`.
///
/// # Safety
/// `caller` must be a frame of the running thread, whose slot `slot` is.
unsafe fn place(slot: Slot, caller: *const Frame, sp: u64) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe {
        let below = shm::frame_sp((*caller).key);
        let most = match is_java(slot, caller) {
            true => below,
            false => below.wrapping_sub(8),
        };
        // A caller that does not enclose it is one on another stack.
        let most = if most > sp { most } else { u64::MAX };
        (sp + SLACK).min(most) & !15
    }
}

/// One of the `PROBE_` values.
fn mode(function: u32) -> u32 {
    // SAFETY: a word of the head.
    let off = unsafe { (&raw const (*java()).off).read_volatile() } != 0;
    if off {
        return shm::PROBE_OFF;
    }
    states::mode(function)
}

fn are_some_off() -> bool {
    // SAFETY: a word of the head.
    unsafe { (&raw const (*java()).some_off).read_volatile() != 0 }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn is_untimed(slot: Slot, mode: u32) -> bool {
    if mode == shm::PROBE_TIMED || flags() & shm::HEADER_TIMED == 0 {
        return false;
    }
    if mode != shm::PROBE_SAMPLED {
        return true;
    }
    // SAFETY: by the caller's promise.
    unsafe { !clock::is_turn(slot) }
}

/// The thread's clock at an event, read when it is wanted.
struct Event {
    slot: Slot,
    now: Option<(u64, bool)>,
}

impl Event {
    /// # Safety
    /// `slot` must be the running thread's.
    unsafe fn of(slot: Slot, timed: bool) -> Event {
        let now = match timed {
            // SAFETY: by the caller's promise.
            true => Some(unsafe { moment(slot, ticks()) }),
            false => None,
        };
        Event { slot, now }
    }

    fn now(&mut self) -> u64 {
        // SAFETY: by the promise of `of`.
        let moment = || unsafe { moment(self.slot, ticks()) };
        self.now.get_or_insert_with(moment).0
    }

    /// The last event's, where nothing is timed at this one.
    fn or_last(&self) -> u64 {
        // SAFETY: by the promise of `of`.
        let last = || unsafe { (*self.slot.shared()).last };
        self.now.map_or_else(last, |(now, _)| now)
    }

    fn end(self) {
        if let Some((now, true)) = self.now {
            // SAFETY: by the promise of `of`.
            unsafe { clock::resume(self.slot, now, false) };
        }
    }
}

/// The thread's clock at an event that began at the counter value `began`; and whether so much time had passed since the last one that the kernel was asked.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn moment(slot: Slot, began: u64) -> (u64, bool) {
    // SAFETY: by the caller's promise.
    unsafe {
        let shared = slot.shared();
        let now = began.wrapping_sub((*shared).off);
        let gap = now.wrapping_sub((*shared).last) as i64;
        let plain = (0..=(*shared).gap).contains(&gap) && !crate::limits::is_frozen();
        if plain && flags() & shm::HEADER_TIMED != 0 {
            (&raw mut (*shared).last).write_volatile(now);
            return (now, false);
        }
        (clock::event(slot, began), true)
    }
}

/// Whether a frame in use is that of a Java method.
///
/// # Safety
/// `frame` must be one of `slot`'s.
unsafe fn is_java(slot: Slot, frame: *const Frame) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { (*frame).key & 8 == 0 && frame > slot.bottom().cast_const() }
}

/// The context of a method, and how its frame is marked. Where memory is short nothing is swept here.
///
/// # Safety
/// `caller` must be a frame of the running thread, whose slot `slot` is.
unsafe fn node_below(slot: Slot, caller: *mut Frame, callee: Callee) -> (*mut shm::Node, u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        let parent = (*caller).node as *mut shm::Node;
        let known = tree::known(parent, callee);
        if !known.is_null() {
            return (known, 0);
        }
        if caller == slot.sentinel() || !slow::in_folded(parent) {
            let node = tree::child(slot, parent, callee, 0, Room::All);
            if !node.is_null() {
                return (node, 0);
            }
            slow::lost_callees(slot, parent, 1);
        }
        (slow::folded(slot, callee.function), shm::KEY_CLOSER)
    }
}

/// Makes the activation of `function` that returns at `sp` the top one, if it is known; what lay above it has ended.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn find(slot: Slot, function: u32, sp: u64, now: u64) -> bool {
    // SAFETY: walks this thread's frames, down to the lowest of this stack.
    unsafe {
        let bottom = slot.bottom();
        let mut frame = slot.top();
        for _ in 0..SEARCHED {
            if frame <= bottom {
                return false;
            }
            let key = (*frame).key;
            if key != 0 && is_java(slot, frame) {
                if slow::function_of((*frame).node as *const shm::Node) == function {
                    slow::drop_above(slot, frame, now);
                    return true;
                }
            } else if key != 0 && shm::frame_sp(key) > sp {
                // A C function that is further out and has not returned.
                return false;
            }
            frame = frame.sub(1);
        }
        false
    }
}

// ---- whose method it is

fn java() -> *mut Java {
    // SAFETY: the head is mapped.
    unsafe { &raw mut (*dynamic::head()).java }
}

/// Classes that were unloaded have given their memory back, where others may have methods from now on.
pub fn forget() {
    // SAFETY: a word of the head.
    unsafe { crate::memory::atomic32(&raw mut (*java()).generation) }.fetch_add(1, Relaxed);
}

/// The number of the function that a method is.
fn number(method: u64) -> Option<u32> {
    // SAFETY: the machine runs the method, so it and what it refers to are there. The fields' places are the machine's own word.
    unsafe {
        let java = java();
        if (&raw const (*java).state).read_volatile() != Java::READY && !prepare() {
            return None;
        }
        dynamic::number(KIND_JAVA, method, check(method), |identity| {
            describe(method, identity)
        })
    }
}

/// Tells a method from others that were at its address before.
///
/// # Safety
/// `method` must be a `Method*` of the virtual machine that cannot be freed meanwhile; the tables were read.
unsafe fn check(method: u64) -> u32 {
    // SAFETY: by the caller's promise.
    unsafe {
        let java = java();
        let constant = word(method, (*java).method_constant);
        let generation = (&raw const (*java).generation).read_volatile();
        (constant >> 3) as u32 ^ (method >> 3) as u32 ^ generation << 20
    }
}

/// # Safety
/// There must be eight bytes at `object + offset`.
unsafe fn word(object: u64, offset: u32) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { (object.wrapping_add(u64::from(offset)) as *const u64).read_unaligned() }
}

/// # Safety
/// There must be two bytes at `object + offset`.
unsafe fn half(object: u64, offset: u32) -> u32 {
    // SAFETY: by the caller's promise.
    u32::from(unsafe { (object.wrapping_add(u64::from(offset)) as *const u16).read_unaligned() })
}

const ACC_STATIC: u32 = 0x8;
const ACC_NATIVE: u32 = 0x100;

/// `java/util/ArrayList.add(Ljava/lang/Object;)Z`, as the class file has it; readers make it look like Java.
///
/// # Safety
/// `method` must be a `Method*` of the virtual machine that cannot be freed meanwhile.
unsafe fn describe(method: u64, identity: &mut Identity) -> bool {
    // SAFETY: as in `number`.
    unsafe {
        let java = &*java().cast_const();
        let constant = word(method, java.method_constant);
        let pool = word(constant, java.constant_pool);
        let holder = word(pool, java.pool_holder);
        if [constant, pool, holder].contains(&0) {
            return false;
        }
        let symbol = |index: u32| word(pool + u64::from(index) * 8, java.pool_size) & !1;
        push_class(java, word(holder, java.class_name), identity);
        identity.name.push(b'.');
        push_symbol(java, symbol(half(constant, java.constant_name)), identity);
        push_symbol(
            java,
            symbol(half(constant, java.constant_signature)),
            identity,
        );
        let access = half(method, java.method_access);
        if access & ACC_STATIC != 0 {
            identity.flags |= RECORD_STATIC;
        }
        if access & ACC_NATIVE != 0 {
            identity.flags |= RECORD_NATIVE;
        }
        if java.pool_file != 0 {
            let file = half(pool, java.pool_file);
            if file != 0 {
                let name = symbol(file);
                let len = half(name, java.symbol_length) as usize;
                let from = name.wrapping_add(u64::from(java.symbol_body));
                identity.file.push_bytes(from as *const u8, len);
            }
        }
        identity.line = first_line(java, constant);
        true
    }
}

/// Of a `ConstMethod`'s flags, in all versions.
const HAS_LINES: u32 = 1;

/// # Safety
/// `symbol` must be a `Symbol*` of the virtual machine that `java` describes.
unsafe fn push_symbol(java: &Java, symbol: u64, identity: &mut Identity) {
    // SAFETY: as in `number`.
    unsafe {
        if symbol != 0 {
            let len = half(symbol, java.symbol_length) as usize;
            let from = symbol.wrapping_add(u64::from(java.symbol_body));
            identity.name.push_bytes(from as *const u8, len);
        }
    }
}

/// Of a hidden class, which lambdas and method handles have, without the address that ends its name: it differs from run to run.
///
/// # Safety
/// `symbol` must be 0 or a `Symbol*` of the virtual machine that `java` describes.
unsafe fn push_class(java: &Java, symbol: u64, identity: &mut Identity) {
    // SAFETY: as in `number`.
    unsafe {
        if symbol == 0 {
            return;
        }
        let from = symbol.wrapping_add(u64::from(java.symbol_body)) as *const u8;
        let len = half(symbol, java.symbol_length) as usize;
        let mut end = 0;
        while end < len {
            let is = |ahead: usize, wanted: u8| {
                end + ahead < len && from.add(end + ahead).read_volatile() == wanted
            };
            if is(0, b'+') && is(1, b'0') && is(2, b'x') {
                break;
            }
            end += 1;
        }
        identity.name.push_bytes(from, end);
    }
}

/// The line of the method's first instruction: the first pair of its packed table, which lies behind its code. 0: it has none.
///
/// # Safety
/// `constant` must be a `ConstMethod*` of the virtual machine that `java` describes.
unsafe fn first_line(java: &Java, constant: u64) -> u32 {
    // SAFETY: as in `number`.
    unsafe {
        if java.constant_flags == 0 || half(constant, java.constant_flags) & HAS_LINES == 0 {
            return 0;
        }
        let excluded = u32::from(java.version >= 20);
        let code = u64::from(half(constant, java.constant_code));
        let mut at = constant + u64::from(java.constant_size) + code;
        let mut byte = || {
            let byte = (at as *const u8).read();
            at += 1;
            u32::from(byte)
        };
        // One byte for both steps where they are short, else this mark and two signed numbers.
        match byte() {
            0 => 0,
            0xff => {
                let _ = packed(excluded, &mut byte);
                let line = packed(excluded, &mut byte);
                (line >> 1) ^ (line & 1).wrapping_neg()
            }
            short => short & 7,
        }
    }
}

/// A number in HotSpot's UNSIGNED5: digits to the base of 64, the lowest first, those that more follow at least 192; `excluded`: in
/// bytes that are one more than that (JDK 20 and later, where no byte is 0).
fn packed(excluded: u32, byte: &mut impl FnMut() -> u32) -> u32 {
    let mut sum = 0u32;
    for digit in 0..5 {
        let value = byte().wrapping_sub(excluded);
        sum = sum.wrapping_add(value << (6 * digit));
        if value < 192 - excluded {
            break;
        }
    }
    sum
}

// ---- where the machine's fields are, by the tables that it exports

/// Reads the tables once. `false`: something that is needed is not there, and methods are not counted.
fn prepare() -> bool {
    let java = java();
    // SAFETY: the head is mapped, and the tables are the machine's, which runs.
    unsafe {
        if (&raw const (*java).state).read_volatile() == Java::UNUSABLE || (*java).tables[0] == 0 {
            return false;
        }
        // Several threads may do this at once: all write the same.
        read_fields(&mut *java);
        read_types(&mut *java);
        let needed = [
            (*java).method_constant,
            (*java).constant_pool,
            (*java).pool_holder,
            (*java).class_name,
            (*java).pool_size,
            (*java).constant_name,
            (*java).constant_signature,
            (*java).symbol_body,
        ];
        let mut usable = true;
        for offset in needed {
            usable &= offset != 0;
        }
        let state = match usable {
            true => Java::READY,
            false => Java::UNUSABLE,
        };
        (&raw mut (*java).state).write_volatile(state);
        usable
    }
}

/// More entries than any machine's tables have.
const ENTRIES: u64 = 20_000;

/// # Safety
/// The virtual machine's tables of fields must be where `java` says.
unsafe fn read_fields(java: &mut Java) {
    // SAFETY: as in `prepare`; the words were written when the library was linked.
    unsafe {
        let at = |index: usize| (java.tables[index] as *const u64).read_volatile();
        let (mut entry, stride) = (at(0), at(4));
        let (of_type, of_field, of_offset) = (at(1), at(2), at(3));
        for _ in 0..ENTRIES {
            let class = (entry.wrapping_add(of_type) as *const u64).read_volatile();
            if class == 0 {
                return;
            }
            let field = (entry.wrapping_add(of_field) as *const u64).read_volatile();
            let offset = (entry.wrapping_add(of_offset) as *const u64).read_volatile() as u32;
            let is = |class_name: &[u8], name: &[u8]| is(class, class_name) && is(field, name);
            if is(b"ciMetadata\0", b"_metadata\0") {
                java.compiled_method = offset;
            } else if is(b"Method\0", b"_constMethod\0") {
                java.method_constant = offset;
            } else if is(b"Method\0", b"_access_flags\0") {
                java.method_access = offset;
            } else if is(b"ConstMethod\0", b"_constants\0") {
                java.constant_pool = offset;
            } else if is(b"ConstMethod\0", b"_name_index\0") {
                java.constant_name = offset;
            } else if is(b"ConstMethod\0", b"_signature_index\0") {
                java.constant_signature = offset;
            } else if is(b"ConstMethod\0", b"_code_size\0") {
                java.constant_code = offset;
            } else if is(b"ConstMethod\0", b"_flags\0") || is(b"ConstMethod\0", b"_flags._flags\0")
            {
                java.constant_flags = offset;
            } else if is(b"ConstantPool\0", b"_pool_holder\0") {
                java.pool_holder = offset;
            } else if is(b"ConstantPool\0", b"_source_file_name_index\0") {
                java.pool_file = offset;
            } else if is(b"Klass\0", b"_name\0") {
                java.class_name = offset;
            } else if is(b"Symbol\0", b"_length\0") {
                java.symbol_length = offset;
            } else if is(b"Symbol\0", b"_body\0") {
                java.symbol_body = offset;
            }
            entry = entry.wrapping_add(stride);
        }
    }
}

/// # Safety
/// The virtual machine's tables of types must be where `java` says.
unsafe fn read_types(java: &mut Java) {
    // SAFETY: as in `read_fields`.
    unsafe {
        let at = |index: usize| (java.tables[index] as *const u64).read_volatile();
        let (mut entry, stride) = (at(5), at(8));
        let (of_type, of_size) = (at(6), at(7));
        for _ in 0..ENTRIES {
            let class = (entry.wrapping_add(of_type) as *const u64).read_volatile();
            if class == 0 {
                return;
            }
            let size = (entry.wrapping_add(of_size) as *const u64).read_volatile() as u32;
            if is(class, b"ConstantPool\0") {
                java.pool_size = size;
            } else if is(class, b"ConstMethod\0") {
                java.constant_size = size;
            }
            entry = entry.wrapping_add(stride);
        }
    }
}

/// Whether the text at `address`, which ends with a zero, is `wanted`, which does so too.
///
/// # Safety
/// `address` must be 0 or that of a text which ends with a zero.
unsafe fn is(address: u64, wanted: &[u8]) -> bool {
    let text = address as *const u8;
    let mut index = 0;
    while index < wanted.len() {
        // SAFETY: a text of the machine's; nothing is read behind its zero, which differs from whatever `wanted` goes on with.
        if text.is_null() || unsafe { text.add(index).read_volatile() } != wanted[index] {
            return false;
        }
        index += 1;
    }
    true
}
