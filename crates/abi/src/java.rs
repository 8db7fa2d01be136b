//! What the probes of Java methods must know of a HotSpot virtual machine (docs/design/managed.md).

/// How many addresses of the machine's own tables are told; see `instrument/java/symbols.rs` for which.
pub const JAVA_TABLES: usize = 9;

#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Java {
    /// Address of the flag's byte, which is set because of us; 0: it is not. Written before the flag is.
    pub flag: u64,
    /// Addresses of the tables that the machine exports about itself; 0: there is none.
    pub tables: [u64; JAVA_TABLES],
    /// One of the values below, written by the agent when it has read the tables.
    pub state: u32,
    /// How often methods may have given their memory to others. Written by the agent, atomically.
    pub generation: u32,
    /// From the tables: offsets in a `Method`, in its `ConstMethod` and that one's size, in their `ConstantPool` and its size, in
    /// a `Klass`, in a `Symbol`.
    pub method_constant: u32,
    pub method_access: u32,
    pub constant_pool: u32,
    pub constant_name: u32,
    pub constant_signature: u32,
    pub constant_flags: u32,
    pub constant_code: u32,
    pub constant_size: u32,
    pub pool_holder: u32,
    pub pool_file: u32,
    pub pool_size: u32,
    pub class_name: u32,
    pub symbol_length: u32,
    pub symbol_body: u32,
    /// 17 for JDK 17.
    pub version: u32,
    /// In the compiler's own object of a method: the `Method*`. 0: not known.
    pub compiled_method: u32,
    /// Not 0: no method is counted any more. Written by the controller.
    pub off: u32,
    /// Not 0: some methods are off by themselves. Written by the controller.
    pub some_off: u32,
}

impl Java {
    /// The tables were read: methods are counted. Or something that is needed is not there: none are.
    pub const READY: u32 = 1;
    pub const UNUSABLE: u32 = 2;
}
