//! A library that a Java virtual machine loads for a moment: it makes the machine drop the code that it has compiled, and
//! keeps nothing.
//!
//! Asking for one small interface to be transformed again, unchanged, does that: HotSpot cannot know which compiled code
//! relies on what is redefined the first time (`instrument/java/drop.rs` sees to it that it is always the first time). No C
//! library, no state. `instrument/build.rs` makes it.
#![no_std]
#![allow(non_snake_case)]

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Not reached: nothing here panics.
    loop {}
}

/// What JNI and the tool interface give out: a pointer to a pointer to a table of functions.
type Tables = *mut *const *const c_void;

const JNI_VERSION_1_6: i32 = 0x0001_0006;
const JVMTI_VERSION_1_2: i32 = 0x3001_0200;

/// Places in the tables, which the interfaces' specifications fix for good.
const INVOKE_GET_ENV: usize = 6;
const JNI_FIND_CLASS: usize = 6;
const JNI_EXCEPTION_CLEAR: usize = 17;
const TOOL_DISPOSE_ENVIRONMENT: usize = 126;
const TOOL_ADD_CAPABILITIES: usize = 141;
const TOOL_RETRANSFORM_CLASSES: usize = 151;

/// `can_retransform_classes` is the 37th bit of sixteen bytes.
static CAN_RETRANSFORM: [u64; 2] = [1 << 37, 0];

const NO_ENVIRONMENT: i32 = -1;
const NO_CLASS: i32 = -2;

type GetEnv = extern "C" fn(Tables, *mut Tables, i32) -> i32;
type FindClass = extern "C" fn(Tables, *const c_char) -> *mut c_void;
type WithTables = extern "C" fn(Tables) -> i32;
type AddCapabilities = extern "C" fn(Tables, *const [u64; 2]) -> i32;
type Retransform = extern "C" fn(Tables, i32, *const *mut c_void) -> i32;

/// The function at `place`.
///
/// # Safety
/// `tables` must be one of the machine's, and `F` the type of that function.
unsafe fn function<F: Copy>(tables: Tables, place: usize) -> F {
    // SAFETY: by the caller's promise; a function pointer is as large as a pointer.
    unsafe { (*tables).add(place).cast::<F>().read() }
}

/// What the machine calls when it was asked through its attach socket to load this. What is returned is told there.
///
/// # Safety
/// The machine keeps its interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn Agent_OnAttach(machine: Tables, _: *const c_char, _: *mut c_void) -> i32 {
    let (mut tool, mut jni): (Tables, Tables) = (null_mut(), null_mut());
    // SAFETY: the tables are those that the machine has given for these versions.
    unsafe {
        let environment: GetEnv = function(machine, INVOKE_GET_ENV);
        if environment(machine, &raw mut jni, JNI_VERSION_1_6) != 0
            || environment(machine, &raw mut tool, JVMTI_VERSION_1_2) != 0
        {
            return NO_ENVIRONMENT;
        }
        let code = transform(tool, jni);
        function::<WithTables>(tool, TOOL_DISPOSE_ENVIRONMENT)(tool);
        code
    }
}

/// # Safety
/// Both must be environments of the running thread.
unsafe fn transform(tool: Tables, jni: Tables) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        let add: AddCapabilities = function(tool, TOOL_ADD_CAPABILITIES);
        let refused = add(tool, &raw const CAN_RETRANSFORM);
        if refused != 0 {
            return refused;
        }
        let find: FindClass = function(jni, JNI_FIND_CLASS);
        let class = find(jni, c"java/util/EventListener".as_ptr());
        if class.is_null() {
            function::<WithTables>(jni, JNI_EXCEPTION_CLEAR)(jni);
            return NO_CLASS;
        }
        let again: Retransform = function(tool, TOOL_RETRANSFORM_CLASSES);
        again(tool, 1, &raw const class)
    }
}
