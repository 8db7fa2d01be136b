//! Compiles target programs. Objects and programs are kept by a hash of everything that went into them, so
//! that tests (threads and processes alike) share them and a second run compiles nothing.

use super::scratch::{self, Scratch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The repository's `tests/targets`.
pub fn targets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/targets")
}

#[derive(Clone)]
struct Source {
    path: PathBuf,
    flags: Vec<String>,
    /// Compiled with the build's own compile flags, or only with `flags` (the instrumentation's runtime).
    plain: bool,
}

#[derive(Clone)]
pub struct Build {
    name: String,
    compiler: String,
    flags: Vec<String>,
    link_flags: Vec<String>,
    sources: Vec<Source>,
    shared: Vec<Build>,
    strip: bool,
}

/// A built program, and where its own functions are.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    /// The same program with its symbols; equal to `path` unless it was stripped.
    pub with_symbols: PathBuf,
    /// The libraries that were built with it.
    pub libraries: Vec<PathBuf>,
    /// Per module (file name): address in the file -> one name for it. Only functions that the sources define.
    pub modules: BTreeMap<String, BTreeMap<u64, String>>,
    /// Functions that may lack room for any jump: a lone `ret` (behind endbr64 or not) with another function close behind,
    /// and those whose first byte is the last of a page, since a patch never straddles two pages.
    pub cramped: BTreeSet<String>,
    /// Every name, aliases included -> the name chosen above.
    pub canonical: BTreeMap<String, String>,
    /// Those of the functions that come from C or C++ of ours: what -finstrument-functions can see.
    pub compiled: BTreeSet<String>,
}

impl Build {
    pub fn new(name: &str) -> Build {
        Build {
            name: name.to_owned(),
            compiler: "gcc".to_owned(),
            // Version 4, because valgrind 3.19 cannot read clang's version 5.
            flags: [
                "-gdwarf-4",
                "-pthread",
                "-Wall",
                "-Wno-infinite-recursion",
                "-Wno-unknown-warning-option",
            ]
            .map(str::to_owned)
            .to_vec(),
            link_flags: Vec::new(),
            sources: Vec::new(),
            shared: Vec::new(),
            strip: false,
        }
    }

    /// A program of one source file at -O2.
    pub fn simple(source: &str) -> Program {
        let name = source.split('.').next().expect("split gives one part");
        Build::new(name).source(source).flag("-O2").finish()
    }

    /// All parts of `all.c` in one program.
    pub fn all_parts() -> Build {
        let mut build = Build::new("all").source("all.c");
        for (part, files) in super::PARTS {
            for file in *files {
                build = build.source_with(file, &[&format!("-Dmain={part}_main")]);
            }
        }
        build
    }

    pub fn compiler(mut self, compiler: &str) -> Build {
        self.compiler = compiler.to_owned();
        self
    }

    /// For compiling and linking alike.
    pub fn flag(mut self, flag: &str) -> Build {
        self.flags.push(flag.to_owned());
        self
    }

    pub fn flags(mut self, flags: &[&str]) -> Build {
        self.flags
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    pub fn link_flag(mut self, flag: &str) -> Build {
        self.link_flags.push(flag.to_owned());
        self
    }

    pub fn source(self, file: &str) -> Build {
        self.source_with(file, &[])
    }

    pub fn source_with(mut self, file: &str, flags: &[&str]) -> Build {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.sources.push(Source {
            path: targets().join(file),
            flags,
            plain: false,
        });
        self
    }

    /// A source that none of the build's flags apply to.
    pub fn plain_source(mut self, file: &str, flags: &[&str]) -> Build {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.sources.push(Source {
            path: targets().join(file),
            flags,
            plain: true,
        });
        self
    }

    /// A source that a test has written itself.
    pub fn file(mut self, path: &Path) -> Build {
        self.sources.push(Source {
            path: path.to_owned(),
            flags: Vec::new(),
            plain: false,
        });
        self
    }

    /// A shared library to be linked with, found again by its absolute path.
    pub fn shared(mut self, library: Build) -> Build {
        self.shared.push(library.flag("-fPIC"));
        self
    }

    pub fn stripped(mut self) -> Build {
        self.strip = true;
        self
    }

    /// The same program with the -finstrument-functions reference inside, in one piece.
    pub fn instrumented(&self) -> Build {
        let mut build = self.clone();
        build.name = format!("{}-instrumented", self.name);
        build.strip = false;
        for library in std::mem::take(&mut build.shared) {
            build.sources.extend(library.sources);
        }
        // What is inlined from headers (vector intrinsics, the C++ library) is no call in the plain build either.
        build = if build.compiler.contains("clang") {
            build.flag("-finstrument-functions-after-inlining")
        } else {
            build.flags(&[
                "-finstrument-functions",
                "-finstrument-functions-exclude-file-list=/include/",
            ])
        };
        build = build.flag("-fno-omit-frame-pointer");
        build.plain_source("cyg.c", &["-xc", "-O1", "-fno-omit-frame-pointer", "-fPIC"])
    }

    pub fn finish(&self) -> Program {
        let mut modules = BTreeMap::new();
        let mut canonical = BTreeMap::new();
        let mut inputs: Vec<PathBuf> = Vec::new();
        for library in &self.shared {
            let (path, objects) =
                library.link(&["-shared"], &format!("lib{}.so", library.name), &[]);
            let names = defined_functions(&objects);
            modules.insert(file_name(&path), addresses(&path, &names, &mut canonical));
            inputs.push(path);
        }
        let (with_symbols, objects) = self.link(&[], &self.name, &inputs);
        let names = defined_functions(&objects);
        let own = addresses(&with_symbols, &names, &mut canonical);
        modules.insert(file_name(&with_symbols), own);
        let path = if self.strip {
            stripped(&with_symbols)
        } else {
            with_symbols.clone()
        };
        let compiled = self.compiled(&canonical);
        let cramped = cramped(&with_symbols, &canonical);
        Program {
            path,
            with_symbols,
            libraries: inputs,
            modules,
            cramped,
            canonical,
            compiled,
        }
    }

    fn compiled(&self, canonical: &BTreeMap<String, String>) -> BTreeSet<String> {
        let own =
            |source: &&Source| !source.plain && source.path.extension().is_none_or(|e| e != "S");
        let objects: Vec<PathBuf> = self
            .sources
            .iter()
            .filter(own)
            .map(|source| self.object(source))
            .chain(
                self.shared
                    .iter()
                    .flat_map(|b| b.sources.iter().filter(own).map(|s| b.object(s))),
            )
            .collect();
        defined_functions(&objects)
            .into_iter()
            .filter(|name| {
                !["_ZNSt", "_ZNKSt", "_ZSt", "_ZZNSt", "_ZN9__gnu"]
                    .iter()
                    .any(|library| name.starts_with(library))
            })
            .filter_map(|name| canonical.get(&name).cloned())
            .collect()
    }

    fn link(&self, extra: &[&str], name: &str, inputs: &[PathBuf]) -> (PathBuf, Vec<PathBuf>) {
        let objects: Vec<PathBuf> = self
            .sources
            .iter()
            .map(|source| self.object(source))
            .collect();
        let mut command = Command::new(&self.compiler);
        command
            .args(&self.flags)
            .args(&self.link_flags)
            .args(extra)
            .args(&objects)
            .args(inputs)
            .arg("-lm");
        for input in inputs {
            let folder = input.parent().expect("a built file has a folder");
            command.arg(format!("-Wl,-rpath,{}", folder.display()));
        }
        let key = hash(&format!("{command:?}"));
        let folder = scratch::root().join("built").join(format!("{key:016x}"));
        let path = folder.join(name);
        make(&path, |temporary| {
            command.arg("-o").arg(temporary);
            run(&mut command);
        });
        (path, objects)
    }

    fn object(&self, source: &Source) -> PathBuf {
        let text = fs::read(&source.path)
            .unwrap_or_else(|e| panic!("cannot read {}: {e}", source.path.display()));
        let headers = ["target.h", "../../include/thalweg.h"];
        let headers = headers.map(|name| fs::read(targets().join(name)).expect("it is readable"));
        let mut command = Command::new(&self.compiler);
        command.arg("-c").arg("-I").arg(targets());
        if !source.plain {
            command.args(&self.flags);
        }
        command.args(&source.flags).arg(&source.path);
        let key = hash(&(format!("{command:?}"), text, headers));
        let stem = source
            .path
            .file_name()
            .expect("a source has a name")
            .to_string_lossy()
            .into_owned();
        let path = scratch::root()
            .join("built")
            .join(format!("{key:016x}.{stem}.o"));
        make(&path, |temporary| {
            command.arg("-o").arg(temporary);
            run(&mut command);
        });
        path
    }
}

/// (name, flags to compile, flags to link, stripped)
type Kind = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
    bool,
);

const KINDS: &[Kind] = &[
    ("pie", &[], &[], false),
    ("no-pie", &["-fno-pie"], &["-no-pie"], false),
    ("static", &[], &["-static"], false),
    ("static-pie", &[], &["-static-pie"], false),
    ("cf-protection", &["-fcf-protection=full"], &[], false),
    ("return-thunk", &["-mfunction-return=thunk"], &[], false),
    ("stripped", &[], &[], true),
    ("static-stripped", &[], &["-static"], true),
];

/// All parts in one program, as every kind of executable that this compiler can make.
pub fn kinds_of_executables(compiler: &str, level: &str) -> Vec<(&'static str, Build)> {
    let mut builds = Vec::new();
    for (kind, compile, link, strip) in KINDS {
        // clang learnt -mfunction-return with version 15; older ones have no thunks to test.
        if compiler == "clang" && *kind == "return-thunk" {
            continue;
        }
        let mut build = Build::all_parts()
            .compiler(compiler)
            .flag(level)
            .flags(compile);
        for flag in *link {
            build = build.link_flag(flag);
        }
        builds.push((*kind, if *strip { build.stripped() } else { build }));
    }
    builds
}

/// A Rust program of one file; its own functions are those whose mangled name holds the crate's.
pub fn rust_program(source: &str, flags: &[&str]) -> Program {
    let path = targets().join(source);
    let text = fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    let name = source.split('.').next().expect("split gives one part");
    let mut command = Command::new("rustc");
    command
        .args(["--edition", "2024", "-g"])
        .args(flags)
        .arg(&path);
    let key = hash(&(format!("{command:?}"), text));
    let built = scratch::root()
        .join("built")
        .join(format!("{key:016x}"))
        .join(name);
    make(&built, |temporary| {
        run(command.arg("-o").arg(temporary));
    });
    let own = format!("{}{name}", name.len());
    let names = symbols(&built)
        .into_iter()
        .filter(|(_, kind, _)| is_code(*kind))
        .map(|(_, _, name)| name);
    let names: BTreeSet<String> = names.filter(|name| name.contains(&own)).collect();
    let mut canonical = BTreeMap::new();
    let modules = [(name.to_owned(), addresses(&built, &names, &mut canonical))].into();
    Program {
        path: built.clone(),
        with_symbols: built,
        libraries: Vec::new(),
        modules,
        cramped: BTreeSet::new(),
        canonical,
        compiled: BTreeSet::new(),
    }
}

impl Program {
    pub fn module(&self) -> String {
        file_name(&self.path)
    }

    /// Every function that the sources define, by its one name.
    pub fn functions(&self) -> BTreeSet<String> {
        self.modules
            .values()
            .flat_map(|names| names.values().cloned())
            .collect()
    }

    pub fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(&self.path)
            .args(arguments)
            .output()
            .expect("target starts");
        assert!(
            output.status.success(),
            "{} fails without any profiler: {output:?}",
            self.path.display()
        );
        String::from_utf8(output.stdout).expect("targets print text")
    }
}

/// A fragment that the compiler split off belongs to its function.
pub fn without_cold(name: &str) -> &str {
    match name.find(".cold") {
        Some(at) => &name[..at],
        None => name,
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .expect("a built file has a name")
        .to_string_lossy()
        .into_owned()
}

pub fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Makes a file in a folder of its own and moves it into place: others may be making the same one, and a compiler has
/// intermediate files beside its output, under names that others have too.
fn make(path: &Path, build: impl FnOnce(&Path)) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if path.exists() {
        return;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = path.with_extension(format!("tmp-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).expect("build folder");
    let temporary = folder.join(file_name(path));
    build(&temporary);
    fs::rename(&temporary, path).expect("built file moves into place");
    let _ = fs::remove_dir_all(&folder);
}

fn stripped(path: &Path) -> PathBuf {
    let folder = path.parent().expect("folder").join("stripped");
    let result = folder.join(file_name(path));
    make(&result, |temporary| {
        run(Command::new("strip")
            .arg("--strip-all")
            .arg("-o")
            .arg(temporary)
            .arg(path));
    });
    result
}

pub fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed ({}):\n{text}{errors}",
        output.status
    );
    text
}

/// (address, kind, name) of every symbol that has an address.
pub fn symbols(path: &Path) -> Vec<(u64, char, String)> {
    run(Command::new("nm").arg(path))
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let address = u64::from_str_radix(fields.next()?, 16).ok()?;
            let kind = fields.next()?.chars().next()?;
            Some((address, kind, fields.next()?.to_owned()))
        })
        .collect()
}

fn cramped(path: &Path, canonical: &BTreeMap<String, String>) -> BTreeSet<String> {
    let listing = run(Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(path));
    let mut found = BTreeSet::new();
    // A blank line ends each function; padding shows as instructions behind the return, so it is room.
    for block in listing.split("\n\n") {
        let mut lines = block.lines().filter(|line| !line.is_empty());
        let Some((address, name)) = lines.next().and_then(|line| line.split_once(" <")) else {
            continue;
        };
        let code: Vec<&str> = lines
            .filter_map(|line| Some(line.split_once(":\t")?.1.trim()))
            .collect();
        let lone = code == ["ret"] || code == ["endbr64", "ret"];
        if let Some(name) = canonical.get(name.trim_end_matches(">:"))
            && (lone || address.ends_with("fff"))
        {
            found.insert(name.clone());
        }
    }
    found
}

fn is_code(kind: char) -> bool {
    matches!(kind, 'T' | 't' | 'W' | 'w')
}

fn defined_functions(objects: &[PathBuf]) -> BTreeSet<String> {
    objects
        .iter()
        .flat_map(|object| symbols(object))
        .filter(|(_, kind, name)| {
            is_code(*kind) && !name.starts_with("__cyg") && !name.starts_with("__x86_")
        })
        .map(|(_, _, name)| name)
        .collect()
}

fn addresses(
    path: &Path,
    names: &BTreeSet<String>,
    canonical: &mut BTreeMap<String, String>,
) -> BTreeMap<u64, String> {
    let mut chosen: BTreeMap<u64, String> = BTreeMap::new();
    for (address, kind, name) in symbols(path) {
        if is_code(kind) && names.contains(&name) && without_cold(&name) == name {
            let first = chosen.entry(address).or_insert_with(|| name.clone());
            canonical.insert(name, first.clone());
        }
    }
    chosen
}

/// A copy that can be started at once. Another process makes it: a child that some other test starts meanwhile would
/// inherit our descriptor, and what is open for writing cannot be executed.
pub fn copy_program(from: &Path, to: &Path) {
    run(Command::new("cp").arg(from).arg(to));
}

/// A 32-bit program, in a directory of the test's own.
pub fn small32(scratch: &Scratch) -> PathBuf {
    let (object, program) = (scratch.join("small32.o"), scratch.join("small32"));
    run(Command::new("as")
        .arg("--32")
        .arg(targets().join("small32.S"))
        .arg("-o")
        .arg(&object));
    run(Command::new("ld")
        .args(["-m", "elf_i386"])
        .arg(&object)
        .arg("-o")
        .arg(&program));
    program
}
