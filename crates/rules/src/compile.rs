//! All rules against all functions of the target, before it is touched: programs, or a message that
//! says what is wrong and where.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::TEXT_LIMIT;
use crate::abi::{self, Types};
use crate::ast::{Expr, Kind, Rule};
use crate::dwarf::Debug;
use crate::error::{Problem, RuleError, near_miss};
use crate::ir::{Emit, Ir, Plan, TooMuch};
use crate::lower::{Lowering, Signature, World};
use crate::pattern::{Pattern, base_name};
use crate::quick::Formula;
use crate::record::{ALL_FIELDS, Descriptions, Recording};
use crate::redact::Redactions;
use crate::signatures::declaration;
use crate::types::{Type, TypeKind, TypeRef};
use crate::value::Description;

/// A function that can be recorded.
#[derive(Clone, Copy, Debug)]
pub struct FunctionInfo<'a> {
    pub number: u32,
    /// Demangled.
    pub name: &'a str,
    /// As in the symbol table.
    pub linkage_name: Option<&'a str>,
    /// The file that it is in, as it can be opened here.
    pub module: &'a Path,
    /// Of its first instruction; the module's own, without what the loader added.
    pub address: u64,
    /// Made by Go's compiler, which has a calling convention of its own.
    pub go: bool,
    /// A runtime runs it, and its arguments are in no register.
    pub managed: bool,
}

/// What holds for all rules.
#[derive(Clone, Debug)]
pub struct Options {
    pub redact: Redactions,
    /// How many bytes of one value are copied.
    pub text_limit: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            redact: Redactions::default(),
            text_limit: TEXT_LIMIT,
        }
    }
}

/// What the agent and its reader need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    /// For `thalweg_bytecode`; their headers say which rule they are of.
    pub programs: Vec<Vec<u8>>,
    /// What comparisons alone tell of each of them.
    pub quick: Vec<Formula>,
    /// Number of a function and of a program; a function that several rules mean is here several
    /// times, in the order of the rules.
    pub of_function: Vec<(u32, u32)>,
    /// Numbers of functions, sorted: what conditions on callers refer to.
    pub sets: Vec<Vec<u32>>,
    /// What value ids mean.
    pub descriptions: Vec<Description>,
    /// How the functions are declared, where that is known: number and text.
    pub signatures: Vec<(u32, String)>,
    /// Functions that a pattern means but a rule cannot be used on, with the reason.
    pub notes: Vec<String>,
}

/// How many rules there may be.
pub const MAX_RULES: usize = 1024;

/// How many functions are named in notes.
const NOTES: usize = 50;

pub fn compile(
    rules: &[Rule],
    functions: &[FunctionInfo<'_>],
    options: &Options,
) -> Result<Compiled, RuleError> {
    let mut compiler = Compiler {
        rules,
        functions,
        options,
        debug: HashMap::new(),
        out: Compiled::default(),
        descriptions: Descriptions::default(),
        sets: HashMap::new(),
        programs: HashMap::new(),
    };
    if let Some(rule) = rules.get(MAX_RULES) {
        return Err(rule.error(Problem::new(0, format!("there may be {MAX_RULES} rules"))));
    }
    for (index, rule) in rules.iter().enumerate() {
        let twice = rules[..index]
            .iter()
            .any(|other| other.name.is_some() && other.name == rule.name);
        if twice {
            let name = rule.name.as_deref().unwrap_or_default();
            let at = rule.text.rfind(name).unwrap_or(0);
            return Err(rule.error(Problem::new(
                at,
                format!("another rule is called '{name}', too"),
            )));
        }
        compiler.one(index as u16, rule)?;
    }
    compiler.out.descriptions = compiler.descriptions.list;
    compiler.out.signatures.sort();
    compiler.out.signatures.dedup();
    Ok(compiler.out)
}

/// Its bytes, and what comparisons alone tell of it.
type Program = (Vec<u8>, Formula);

struct Compiler<'a> {
    rules: &'a [Rule],
    functions: &'a [FunctionInfo<'a>],
    options: &'a Options,
    debug: HashMap<PathBuf, Option<Rc<Debug>>>,
    out: Compiled,
    descriptions: Descriptions,
    sets: HashMap<String, u16>,
    programs: HashMap<Vec<u8>, u32>,
}

impl Compiler<'_> {
    fn one(&mut self, index: u16, rule: &Rule) -> Result<(), RuleError> {
        let functions = self.functions;
        let meant: Vec<&FunctionInfo<'_>> = functions
            .iter()
            .filter(|function| means(&rule.pattern, function))
            .collect();
        let modules = functions.iter().map(|function| module_name(function));
        if meant.is_empty()
            && let Some(module) = rule.pattern.absent_module(modules)
        {
            self.out.notes.push(format!(
                "{}: no module '{module}' is loaded; the rule waits for it",
                rule.pattern
            ));
            return Ok(());
        }
        if meant.is_empty() {
            let start = rule.text.len() - rule.text.trim_start().len();
            let help = self.near_function(&rule.pattern);
            let problem = Problem::new(start, format!("no function is called '{}'", rule.pattern));
            return Err(rule.error(problem.help_if(help)));
        }
        let needs_types = needs_types(rule);
        let mut first_problem = None;
        let mut used = false;
        for function in meant {
            match self.function(index, rule, function, needs_types) {
                // Its types say that it is not meant.
                Ok(None) => {}
                Ok(Some((program, quick))) => {
                    let number = self.program(program, quick);
                    self.out.of_function.push((function.number, number));
                    used = true;
                }
                Err(problem) => {
                    if self.out.notes.len() < NOTES {
                        let note = format!("{}: {}", function.name, problem.message);
                        self.out.notes.push(note);
                    }
                    first_problem = first_problem.or(Some(problem));
                }
            }
        }
        match first_problem {
            _ if used => Ok(()),
            Some(problem) => Err(rule.error(problem)),
            None => {
                let at = rule.condition.as_ref().map_or(0, |c| c.at);
                let message = "no call of any function can fulfil this condition";
                Err(rule.error(Problem::new(at, message)))
            }
        }
    }

    fn program(&mut self, bytes: Vec<u8>, quick: Formula) -> u32 {
        if let Some(number) = self.programs.get(&bytes) {
            return *number;
        }
        let number = self.out.programs.len() as u32;
        self.out.programs.push(bytes.clone());
        self.out.quick.push(quick);
        self.programs.insert(bytes, number);
        number
    }

    fn function(
        &mut self,
        index: u16,
        rule: &Rule,
        function: &FunctionInfo<'_>,
        needs_types: bool,
    ) -> Result<Option<Program>, Problem> {
        let debug = needs_types.then(|| self.debug(function.module)).flatten();
        let signature = match &debug {
            Some(debug) => self.signature(debug, function),
            None => Err(no_debug_information(function.module)),
        };
        let no_types = NoTypes;
        let types: &dyn Types = match &debug {
            Some(debug) => &**debug,
            None => &no_types,
        };
        let lowering = Lowering {
            rule,
            signature: signature.as_ref().map_err(Clone::clone),
            types,
            go: function.go,
            managed: function.managed,
        };
        let own_names: Vec<String> = match &signature {
            Ok(signature) => signature.parameters.iter().map(|p| p.0.clone()).collect(),
            Err(_) => Vec::new(),
        };
        let redact = &self.options.redact;
        let mut plan = Plan {
            rule: index,
            condition: None,
            emits: Vec::new(),
            first: rule.first.unwrap_or(0),
            per_second: rule.per_second.unwrap_or(0) as u32,
            may_wait: !self.rules.iter().any(asks_whether_open),
        };
        if let Some(condition) = &rule.condition {
            if let Some((name, at)) = redact.on_the_way(condition, rule, &own_names) {
                return Err(Problem::new(
                    at,
                    format!("'{name}' is on the list of names that are never read"),
                ));
            }
            match lowering.condition(condition, self)?.folded() {
                Ir::Const(0) => return Ok(None),
                Ir::Const(_) => {}
                condition => plan.condition = Some(condition),
            }
        }
        let limit =
            u16::try_from(self.options.text_limit.clamp(1, crate::MAX_TEXT)).unwrap_or(u16::MAX);
        let mut recording = Recording {
            types,
            redactions: redact,
            limit,
            descriptions: &mut self.descriptions,
            emits: Vec::new(),
            fields_left: ALL_FIELDS,
        };
        let mut read_at_entry = Vec::new();
        for e in &rule.record {
            let before = recording.emits.len();
            match redact.on_the_way(e, rule, &own_names) {
                Some(_) => {
                    let full = |_| {
                        Problem::new(e.at, "the rules record more values than can be told apart")
                    };
                    recording.redacted(&e.to_string()).map_err(full)?;
                }
                None => recording.expression(e, &lowering)?,
            }
            let emits = recording.emits.get(before..).unwrap_or_default();
            if !emits.iter().all(Emit::can_wait) && !matches!(e.kind, Kind::Args | Kind::Changed(_))
            {
                read_at_entry.push(e.to_string());
            }
        }
        plan.emits = recording.emits;
        let quick = Formula::of(plan.condition.as_ref());
        let is_late = plan.condition.as_ref().is_some_and(Ir::is_late);
        if is_late && !read_at_entry.is_empty() && quick.is_asked_of_each_call() {
            let exits: Vec<String> = read_at_entry.iter().map(|e| format!("exit({e})")).collect();
            let note = format!(
                "{}: {} is read at each call, kept or not, which takes 1.5 us; {} is read of those that are kept",
                rule.pattern,
                read_at_entry.join(", "),
                exits.join(", "),
            );
            if self.out.notes.len() < NOTES && !self.out.notes.contains(&note) {
                self.out.notes.push(note);
            }
        }
        let program = plan.assemble().map_err(|why| {
            let at = rule.condition.as_ref().map_or(0, |c| c.at);
            Problem::new(
                at,
                match why {
                    TooMuch::Complex => "this is more than can be computed at one call",
                    TooMuch::Long => "this becomes too long a program",
                },
            )
            .help("make several rules of it")
        })?;
        Ok(Some((program, quick)))
    }

    fn debug(&mut self, module: &Path) -> Option<Rc<Debug>> {
        if let Some(debug) = self.debug.get(module) {
            return debug.clone();
        }
        let debug = Debug::load(module).map(Rc::new);
        self.debug.insert(module.to_owned(), debug.clone());
        debug
    }

    fn signature(
        &mut self,
        debug: &Debug,
        function: &FunctionInfo<'_>,
    ) -> Result<Signature, String> {
        let declared = debug
            .function(function.address, function.linkage_name)
            .ok_or("the debug information does not have this function")?;
        let text = declaration(function.name, &declared);
        self.out.signatures.push((function.number, text));
        if declared.altered && function.go {
            return Err(
                "it is a generic function or was built with -N, so where its arguments are is not said"
                    .into(),
            );
        }
        if declared.altered {
            return Err(
                "the compiler made this copy with other arguments than were written".into(),
            );
        }
        if let Some(go) = &declared.go {
            return Ok(crate::go::signature(&declared.parameters, go, debug));
        }
        let types: Vec<Rc<Type>> = declared.parameters.iter().map(|p| p.1.clone()).collect();
        let returns = declared
            .returns
            .as_ref()
            .filter(|ty| !matches!(ty.kind, TypeKind::Void));
        let places = if declared.rust {
            abi::rust(&types, returns, debug)
        } else {
            abi::system_v(&types, returns, debug)
        };
        let parameters = declared.parameters.into_iter().zip(places.parameters);
        Ok(Signature {
            parameters: parameters
                .map(|((name, ty), place)| (name, ty, place))
                .collect(),
            returns: returns.cloned().map(|ty| (ty, places.returns)),
        })
    }

    fn near_function(&self, pattern: &Pattern) -> Option<String> {
        let plain = pattern.plain()?;
        near_miss(plain, self.functions.iter().map(|f| base_name(f.name))).or_else(|| {
            // Without namespaces.
            let last = |name: &'_ str| name.rsplit("::").next().unwrap_or_default().len();
            let names = self.functions.iter().map(|f| base_name(f.name));
            near_miss(plain, names.map(|name| &name[name.len() - last(name)..]))
        })
    }
}

impl World for Compiler<'_> {
    fn set(&mut self, pattern: &Pattern) -> Result<u16, Option<String>> {
        let key = pattern.to_string();
        if let Some(set) = self.sets.get(&key) {
            return Ok(*set);
        }
        let mut numbers: Vec<u32> = self
            .functions
            .iter()
            .filter(|function| means(pattern, function))
            .map(|function| function.number)
            .collect();
        if numbers.is_empty() {
            return Err(self.near_function(pattern));
        }
        numbers.sort_unstable();
        let set = u16::try_from(self.out.sets.len())
            .map_err(|_| Some("there are too many patterns".to_owned()))?;
        self.out.sets.push(numbers);
        self.sets.insert(key, set);
        Ok(set)
    }

    fn rule(&self, name: &str) -> Result<u16, Option<String>> {
        let names = || self.rules.iter().filter_map(|rule| rule.name.as_deref());
        let found = self
            .rules
            .iter()
            .position(|rule| rule.name.as_deref() == Some(name));
        found
            .map(|index| index as u16)
            .ok_or_else(|| near_miss(name, names()))
    }
}

impl Types for Debug {
    fn resolve(&self, at: Option<TypeRef>) -> Rc<Type> {
        Debug::resolve(self, at)
    }
}

struct NoTypes;

impl Types for NoTypes {
    fn resolve(&self, _: Option<TypeRef>) -> Rc<Type> {
        Rc::new(Type {
            name: "void".into(),
            size: 0,
            kind: TypeKind::Void,
        })
    }
}

/// Whether a rule with this pattern is for the function, by its name.
pub fn means(pattern: &Pattern, function: &FunctionInfo<'_>) -> bool {
    pattern.matches(module_name(function), function.name, function.linkage_name)
}

fn module_name<'a>(function: &FunctionInfo<'a>) -> &'a str {
    let name = function.module.file_name();
    name.and_then(|name| name.to_str()).unwrap_or_default()
}

fn no_debug_information(module: &Path) -> String {
    let name = module.file_name().unwrap_or_default().to_string_lossy();
    format!("{name} has no debug information")
}

/// Does the rule have `while NAME` in it?
fn asks_whether_open(rule: &Rule) -> bool {
    let mut asks = false;
    rule.condition
        .iter()
        .for_each(|e: &Expr| e.visit(&mut |e| asks |= matches!(e.kind, Kind::While(_))));
    asks
}

/// Does the rule ask for anything that only debug information tells?
fn needs_types(rule: &Rule) -> bool {
    let mut needed = false;
    let all = rule.condition.iter().chain(&rule.record);
    all.for_each(|e: &Expr| {
        e.visit(&mut |e| {
            needed |= matches!(
                e.kind,
                Kind::Name(_)
                    | Kind::Arg(_)
                    | Kind::Ret
                    | Kind::Args
                    | Kind::SelfTime
                    | Kind::Takes(_)
                    | Kind::Returns(_)
            );
        });
    });
    needed
}
