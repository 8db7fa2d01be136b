//! Recorded calls as OpenTelemetry spans: one `ExportTraceServiceRequest` message, as a collector
//! takes it. Each tree of calls is a trace.

use std::collections::BTreeMap;

use serde_json::Value;
use thalweg_model::{Call, CallEnd, Profile};

use crate::calls::Calls;
use crate::protobuf::Message;

const KIND_INTERNAL: u64 = 1;
const STATUS_ERROR: u64 = 2;

/// The message, in the wire form of protocol buffers.
pub fn request(profile: &Profile) -> Vec<u8> {
    let calls = Calls::new(profile);
    // The outermost call above each.
    let mut roots: Vec<usize> = Vec::with_capacity(calls.all().len());
    let mut by_process: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (index, call) in calls.all().iter().enumerate() {
        let root = call.parent.map_or(index, |parent| roots[parent as usize]);
        roots.push(root);
        by_process.entry(call.pid).or_default().push(index);
    }
    let mut request = Message::new();
    for (pid, indices) in by_process {
        request.message(1, |resource_spans| {
            resource_spans.message(1, |resource| {
                let process = profile.processes.iter().find(|process| process.pid == pid);
                let command = process.and_then(|process| process.command.first());
                let name =
                    command.map_or("thalweg", |path| path.rsplit('/').next().unwrap_or(path));
                attribute(resource, 1, "service.name", &name.into());
                attribute(resource, 1, "process.pid", &pid.into());
            });
            resource_spans.message(2, |scope_spans| {
                scope_spans.message(1, |scope| scope.text(1, "thalweg"));
                for index in indices {
                    let call = &calls.all()[index];
                    let root = &calls.all()[roots[index]];
                    scope_spans.message(2, |message| span(&calls, call, root, message));
                }
            });
        });
    }
    request.as_bytes().to_vec()
}

fn span<'a>(calls: &Calls<'a>, call: &'a Call, root: &Call, out: &mut Message) {
    let mut trace = calls.unix_ns(0).to_be_bytes().to_vec();
    trace.extend_from_slice(&span_id(root));
    out.element(1, &trace);
    out.element(2, &span_id(call));
    if let Some(parent) = call
        .parent
        .and_then(|parent| calls.all().get(parent as usize))
    {
        out.element(4, &span_id(parent));
    }
    out.text(5, calls.function(call));
    out.number(6, KIND_INTERNAL);
    out.fixed64(7, calls.unix_ns(call.entry_ns));
    out.fixed64(8, calls.unix_ns(call.exit_ns));
    let mut put = |key: &str, value: Value| attribute(out, 9, key, &value);
    put("code.function.name", calls.function(call).into());
    put("thread.id", call.tid.into());
    put("thread.name", calls.thread(call).into());
    put("thalweg.module", calls.module(call).into());
    put("thalweg.self_ns", call.self_ns.into());
    put("thalweg.waited_ns", call.waited_ns.into());
    put("thalweg.end", call.end.word().into());
    if let Some(rule) = calls.rule(call) {
        put("thalweg.rule", rule.into());
    }
    if let Some(signature) = calls.signature(call) {
        put("thalweg.signature", signature.into());
    }
    if call.request != 0 {
        put("thalweg.request", call.request.into());
    }
    for (name, at_entry, json) in calls.values(call) {
        let when = if at_entry { "entry" } else { "exit" };
        let value = serde_json::from_str(json).unwrap_or(Value::Null);
        put(&format!("thalweg.{when}.{name}"), value);
    }
    if call.end == CallEnd::Unwound {
        out.message(15, |status| status.number(3, STATUS_ERROR));
    }
}

/// All zeros would mean none.
fn span_id(call: &Call) -> [u8; 8] {
    call.id.wrapping_add(1).max(1).to_be_bytes()
}

fn attribute(out: &mut Message, field: u32, key: &str, value: &Value) {
    out.message(field, |pair| {
        pair.text(1, key);
        pair.message(2, |any| match value {
            Value::Bool(value) => any.boolean(2, *value),
            Value::Number(number) if number.is_i64() || number.is_u64() => {
                let number = number.as_i64().map(|n| n as u64).or(number.as_u64());
                any.present_number(3, number.unwrap_or(0));
            }
            Value::Number(number) => any.double(4, number.as_f64().unwrap_or(0.0)),
            Value::String(text) => any.element(1, text.as_bytes()),
            other => any.element(1, other.to_string().as_bytes()),
        });
    });
}
