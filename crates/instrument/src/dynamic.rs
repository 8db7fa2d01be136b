//! Functions that are named by a pointer into the target, as its shared memory tells of them (docs/design/managed.md):
//! from records to functions of the profile. Whatever a record says may be a lie; none leads out of its bounds.

use std::collections::HashMap;
use std::mem::offset_of;

use thalweg_abi as shm;
use thalweg_abi::dynamic::*;
use thalweg_model as model;
use thalweg_model::Language;

use crate::error::{Error, Result};
use crate::memory::{IntoBytes, Shared};
use crate::python::is_inlined;

/// What is known of them, by their numbers.
#[derive(Default)]
pub(crate) struct Dynamic {
    functions: HashMap<u32, Described>,
    /// How often Python calls went too deep to be told apart.
    python_deep: u32,
    python_hidden: u32,
    python: Python,
}

struct Described {
    name: String,
    file: String,
    line: u32,
    kind: u16,
}

pub(crate) fn head(shared: &Shared) -> Result<DynamicHead> {
    shared.read(shm::DYNAMIC_OFFSET)
}

/// What the probe of CPython's evaluator must know, and the evaluator's number.
pub(crate) fn tell_python(shared: &Shared, python: &Python, number: Option<u32>) -> Result<()> {
    let next = number.map_or(0, |number| number.wrapping_add(1));
    let place = shm::DYNAMIC_OFFSET + offset_of!(DynamicHead, python_evaluator) as u64;
    shared.write(place, &next.to_le_bytes())?;
    let place = shm::DYNAMIC_OFFSET + offset_of!(DynamicHead, python) as u64;
    shared.write(place, python.as_bytes())
}

/// Whether the evaluator's probes are gone.
pub(crate) fn note_python_off(shared: &Shared, off: bool) -> Result<()> {
    let place = shm::DYNAMIC_OFFSET + offset_of!(DynamicHead, python_off) as u64;
    shared.write(place, &u32::from(off).to_le_bytes())
}

/// The functions of one runtime, which are switched all at once: they have the state of one of them.
pub struct Family {
    kind: u16,
    /// CPython's evaluator; of Java methods the function that stands for those that found no room.
    pub leader: Option<u32>,
    pub numbers: Vec<u32>,
    /// Records that were read.
    read: u64,
    /// The one for those that found no room was seen.
    has_others: bool,
}

impl Family {
    pub fn python() -> Family {
        Family::of(KIND_PYTHON)
    }

    pub fn java() -> Family {
        Family::of(KIND_JAVA)
    }

    fn of(kind: u16) -> Family {
        Family {
            kind,
            leader: None,
            numbers: Vec::new(),
            read: 0,
            has_others: false,
        }
    }

    pub(crate) fn is_java(&self) -> bool {
        self.kind == KIND_JAVA
    }

    /// All that there are at this moment.
    pub fn read(mut self, shared: &Shared) -> Result<Family> {
        self.update(shared)?;
        Ok(self)
    }

    /// Takes in those that were seen first since the last time.
    pub fn update(&mut self, shared: &Shared) -> Result<()> {
        self.leader = leader(shared, self)?;
        if self.leader.is_none() {
            return Ok(());
        }
        let head = head(shared)?;
        let others = head.others[usize::from(self.kind)].checked_sub(1);
        let records = u64::from(head.records).min(DYNAMIC_LIMIT);
        let new = records.saturating_sub(self.read);
        let at = shm::DYNAMIC_OFFSET + DYNAMIC_RECORDS_AT + self.read * DYNAMIC_RECORD_SIZE;
        // All at once: the budget does this at each of its looks.
        for record in shared.read_all::<DynamicRecord>(at, new)? {
            if record.state == RECORD_NONE {
                // Not written yet: the next time.
                break;
            }
            self.read += 1;
            if record.kind == self.kind {
                self.numbers.push(record.number);
            }
        }
        if !self.has_others
            && let Some(number) = others
        {
            self.numbers.push(number);
            self.has_others = true;
        }
        Ok(())
    }
}

/// How many were seen so far.
pub fn seen(shared: &Shared) -> Result<u32> {
    Ok(head(shared)?.records)
}

/// By whose state a family is switched.
pub(crate) fn leader(shared: &Shared, family: &Family) -> Result<Option<u32>> {
    let head = head(shared)?;
    let next = match family.kind {
        KIND_PYTHON => head.python_evaluator,
        kind => head.others[usize::from(kind)],
    };
    Ok(next.checked_sub(1))
}

/// The function that stands for Java methods which find no room, and by whose state all of them are switched; made here where no
/// method has wanted it yet. `None`: no method is counted because of us.
pub fn java_leader(shared: &Shared) -> Result<Option<u32>> {
    let head = head(shared)?;
    let known = head.others[usize::from(KIND_JAVA)].checked_sub(1);
    if known.is_some() || head.java.flag == 0 {
        return Ok(known);
    }
    let header = shared.header()?;
    let number = take_numbers(shared, 1, header.functions_limit)?;
    let record = DynamicRecord {
        state: RECORD_READY,
        kind: KIND_JAVA,
        flags: RECORD_OTHERS,
        number,
        ..DynamicRecord::default()
    };
    let index = DYNAMIC_LIMIT + u64::from(KIND_JAVA);
    let at = shm::DYNAMIC_OFFSET + DYNAMIC_RECORDS_AT + index * DYNAMIC_RECORD_SIZE;
    shared.write(at, record.as_bytes())?;
    // Should the agent do the same this very moment, one of the two numbers has no calls.
    let others = offset_of!(DynamicHead, others) + usize::from(KIND_JAVA) * 4;
    let place = shm::DYNAMIC_OFFSET + others as u64;
    shared.write(place, &number.wrapping_add(1).to_le_bytes())?;
    Ok(Some(number))
}

/// Some Java methods are off; or (`all`) none is counted any more.
pub(crate) fn note_java_off(shared: &Shared, all: bool) -> Result<()> {
    let set = |field: usize| {
        let place = shm::DYNAMIC_OFFSET + (offset_of!(DynamicHead, java) + field) as u64;
        shared.write(place, &1u32.to_le_bytes())
    };
    set(offset_of!(shm::Java, some_off))?;
    match all {
        true => set(offset_of!(shm::Java, off)),
        false => Ok(()),
    }
}

fn record(shared: &Shared, index: u64) -> Result<DynamicRecord> {
    shared.read(shm::DYNAMIC_OFFSET + DYNAMIC_RECORDS_AT + index * DYNAMIC_RECORD_SIZE)
}

/// What the probes of Java methods must know.
pub(crate) fn tell_java(shared: &Shared, java: &shm::Java) -> Result<()> {
    let place = shm::DYNAMIC_OFFSET + offset_of!(DynamicHead, java) as u64;
    shared.write(place, java.as_bytes())
}

impl Dynamic {
    pub(crate) fn read(shared: &Shared) -> Result<Dynamic> {
        let head = head(shared)?;
        let mut functions = HashMap::new();
        let records = u64::from(head.records).min(DYNAMIC_LIMIT);
        if records == 0 && head.others == [0; KINDS as usize] {
            return Ok(Dynamic::default());
        }
        let used = head.text.min(DYNAMIC_TEXT_LEN);
        let text = shared.read_vec(shm::DYNAMIC_OFFSET + DYNAMIC_TEXT, used)?;
        for index in (0..records).chain(DYNAMIC_LIMIT..DYNAMIC_RECORDS) {
            let record = record(shared, index)?;
            if record.state == RECORD_NONE {
                continue;
            }
            functions.insert(record.number, described(&record, &text));
        }
        Ok(Dynamic {
            functions,
            python_deep: head.python_deep,
            python_hidden: head.python_hidden,
            python: head.python,
        })
    }

    /// Whether some of its calls may not have been told apart.
    fn is_bound(&self, one: &Described) -> bool {
        let all = self.python_deep > 0 || self.python_hidden > 0;
        one.kind == KIND_PYTHON && (all || is_inlined(&self.python, &one.name))
    }

    pub(crate) fn note(&self) -> Option<String> {
        if self.python_deep == 0 && self.python_hidden > 0 {
            return Some(
                "CPython's support of perf ended: what Python functions then called before the next call from C is in them, so that calls are lower bounds"
                    .to_owned(),
            );
        }
        (self.python_deep > 0).then(|| {
            format!(
                "Python calls went so deep {} times that they would have used up the stack: what was called beyond that is in the deepest function that was counted, so that calls are lower bounds",
                self.python_deep
            )
        })
    }

    /// Puts those whose number comes next behind the functions of `profile`, up to `number`. One that nobody describes is a function, too.
    pub(crate) fn add_up_to(
        &self,
        profile: &mut model::Profile,
        modules: &mut Modules,
        number: u32,
    ) {
        while (profile.functions.len() as u32) < number {
            let next = profile.functions.len() as u32;
            let function = match self.functions.get(&next) {
                Some(described) => {
                    let module = modules.of(profile, described);
                    let file = Some(described.file.clone());
                    model::Function {
                        name: described.name.clone(),
                        module,
                        file: file.filter(|file| !file.is_empty()),
                        line: described.line,
                        language: language(described.kind),
                        at_least: self.is_bound(described),
                        ..model::Function::default()
                    }
                }
                None => model::Function {
                    name: "unknown function".into(),
                    module: modules.nobodys(profile),
                    ..model::Function::default()
                },
            };
            profile.functions.push(function);
        }
    }
}

fn language(kind: u16) -> Language {
    match kind {
        KIND_PYTHON => Language::Python,
        KIND_JAVA => Language::Java,
        _ => Language::Native,
    }
}

fn described(record: &DynamicRecord, text: &[u8]) -> Described {
    let slice = |at: u32, len: u32| {
        let end = (at as usize).checked_add((len as usize).min(DYNAMIC_TEXT_MOST as usize));
        let bytes = end.and_then(|end| text.get(at as usize..end));
        readable(bytes.unwrap_or_default())
    };
    let mut name = slice(record.name, record.name_len);
    if record.flags & RECORD_OTHERS != 0 {
        name = match record.kind {
            KIND_PYTHON => "other Python functions".into(),
            KIND_JAVA => "other Java methods".into(),
            _ => "other functions".into(),
        };
    }
    if record.kind == KIND_JAVA {
        name = java_name(&name).unwrap_or(name);
    }
    if name.is_empty() {
        name = "unknown function".into();
    }
    if record.flags & RECORD_CUT != 0 {
        name.push_str("...");
    }
    Described {
        name,
        file: slice(record.file, record.file_len),
        line: record.line,
        kind: record.kind,
    }
}

/// `java.util.HashMap.get(Object)` for `java/util/HashMap.get(Ljava/lang/Object;)Ljava/lang/Object;`, as class files say it.
fn java_name(raw: &str) -> Option<String> {
    let (method, signature) = raw.split_once('(')?;
    let (class, name) = method.rsplit_once('.')?;
    let mut rest = signature.split_once(')')?.0;
    let mut arguments = Vec::new();
    while let Some(first) = rest.chars().find(|c| *c != '[') {
        let (arrays, of) = rest.split_at(rest.find(first)?);
        let (argument, behind) = match first {
            'L' => {
                let (class, behind) = of[1..].split_once(';')?;
                (class.rsplit('/').next()?, behind)
            }
            'B' => ("byte", &of[1..]),
            'C' => ("char", &of[1..]),
            'D' => ("double", &of[1..]),
            'F' => ("float", &of[1..]),
            'I' => ("int", &of[1..]),
            'J' => ("long", &of[1..]),
            'S' => ("short", &of[1..]),
            'Z' => ("boolean", &of[1..]),
            _ => return None,
        };
        arguments.push(format!("{argument}{}", "[]".repeat(arrays.len())));
        rest = behind;
    }
    let class = class.replace('/', ".");
    Some(format!("{class}.{name}({})", arguments.join(", ")))
}

/// As text that a terminal may be given.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(visible).collect()
}

/// Modules of dynamic functions: source files and classes, in a profile that is being put together.
#[derive(Default)]
pub(crate) struct Modules {
    known: HashMap<(u16, String), u32>,
    nobodys: Option<u32>,
}

impl Modules {
    fn of(&mut self, profile: &mut model::Profile, described: &Described) -> u32 {
        let path = module_path(described);
        let key = (described.kind, path);
        if let Some(known) = self.known.get(&key) {
            let module = &mut profile.modules[*known as usize];
            module.functions_total += 1;
            module.functions_patched += 1;
            return *known;
        }
        let module = add_module(profile, module_name(described), key.1.clone());
        self.known.insert(key, module);
        module
    }

    fn nobodys(&mut self, profile: &mut model::Profile) -> u32 {
        let nobodys = &mut self.nobodys;
        *nobodys.get_or_insert_with(|| add_module(profile, "unknown".into(), String::new()))
    }
}

fn add_module(profile: &mut model::Profile, name: String, path: String) -> u32 {
    profile.modules.push(model::Module {
        name,
        path,
        functions_total: 1,
        functions_patched: 1,
        ..model::Module::default()
    });
    profile.modules.len() as u32 - 1
}

/// Of Python the source file; of Java the class, which its methods' names begin with.
fn module_path(described: &Described) -> String {
    match described.kind {
        KIND_JAVA => class_of(&described.name).to_owned(),
        _ => described.file.clone(),
    }
}

fn module_name(described: &Described) -> String {
    match described.kind {
        KIND_JAVA => class_of(&described.name).to_owned(),
        _ => {
            let name = described.file.rsplit('/').next().unwrap_or_default();
            if name.is_empty() { "python" } else { name }.to_owned()
        }
    }
}

/// `java.util.HashMap` of `java.util.HashMap.get(Object)`.
fn class_of(name: &str) -> &str {
    let head = name.split('(').next().unwrap_or_default();
    head.rsplit_once('.').map_or("", |(class, _)| class)
}

/// Takes `count` numbers of functions from the memory's counter, from which threads of the target take theirs as well. Returns the first.
pub(crate) fn take_numbers(shared: &Shared, count: u32, limit: u64) -> Result<u32> {
    let counter = offset_of!(shm::Header, functions) as u64;
    let first = shared.add_to(counter, count)?;
    if u64::from(first).saturating_add(count.into()) > limit {
        return Err(Error::NoRoom("no numbers left for functions".into()));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: (u32, u32), file: (u32, u32)) -> DynamicRecord {
        DynamicRecord {
            state: RECORD_READY,
            number: 1,
            line: 7,
            name: name.0,
            name_len: name.1,
            file: file.0,
            file_len: file.1,
            ..DynamicRecord::default()
        }
    }

    #[test]
    fn a_record_of_a_hostile_target_never_leads_out_of_its_text() {
        let text = b"parse\x1b[31m/srv/app.py\xff";
        let good = described(&record((0, 5), (10, 11)), text);
        assert_eq!((&*good.name, &*good.file), ("parse", "/srv/app.py"));
        let far = described(&record((u32::MAX, u32::MAX), (20, 4000)), text);
        assert_eq!((&*far.name, &*far.file), ("unknown function", ""));
        let ugly = described(&record((5, 5), (21, 1)), text);
        assert_eq!((&*ugly.name, &*ugly.file), ("\u{fffd}[31m", "\u{fffd}"));
    }

    #[test]
    fn a_java_method_is_called_as_in_java() {
        let named = |raw| java_name(raw).unwrap_or_default();
        let get = "java/util/HashMap.get(Ljava/lang/Object;)Ljava/lang/Object;";
        assert_eq!(named(get), "java.util.HashMap.get(Object)");
        let main = "Main$1.<init>([[I[Ljava/lang/String;JZ)V";
        assert_eq!(
            named(main),
            "Main$1.<init>(int[][], String[], long, boolean)"
        );
        for broken in [
            "A.f(",
            "A.f(Q)V",
            "A.f(Lx)V",
            "f()V",
            "A.f([[)V",
            "A.f(\u{e9})V",
        ] {
            assert!(!named(broken).contains('\u{fffd}'), "{broken}");
        }
    }

    #[test]
    fn numbers_of_modules_and_of_pointers_are_in_one_row() {
        let mut profile = model::Profile::default();
        profile.modules.push(model::Module::default());
        profile.functions.push(model::Function::default());
        let mut dynamic = Dynamic::default();
        let of = |name: &str, file: &str, kind| Described {
            name: name.into(),
            file: file.into(),
            line: 3,
            kind,
        };
        let functions = &mut dynamic.functions;
        functions.insert(1, of("Request.parse", "/srv/app.py", KIND_PYTHON));
        functions.insert(3, of("a.b.C.run(int)", "C.java", KIND_JAVA));
        dynamic.add_up_to(&mut profile, &mut Modules::default(), 4);
        let told = |f: &model::Function| {
            let module = &profile.modules[f.module as usize].name;
            format!("{} {module} {}", f.name, f.language.name())
        };
        let told: Vec<String> = profile.functions[1..].iter().map(told).collect();
        assert_eq!(
            told,
            [
                "Request.parse app.py python",
                "unknown function unknown native",
                "a.b.C.run(int) a.b.C java"
            ]
        );
    }
}
