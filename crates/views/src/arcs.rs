//! A stanza per function, its callers above it and its callees below.
//!
//! In each stanza the parents' calls, self and total add up to the function's, and the children's
//! total to the function's total less its self.

use serde::Serialize;
use thalweg_analysis::{Arc, Bounds, Caller, stanzas};
use thalweg_model::{FuncId, Profile};

use crate::flat::order;
use crate::sites::SiteOf;
use crate::{LeftOut, Selection, is_false, name};

#[derive(Serialize)]
pub struct Stanzas<'a> {
    schema: &'static str,
    pub timed: bool,
    pub stanzas: Vec<Stanza<'a>>,
    pub not_shown: LeftOut,
}

#[derive(Serialize)]
pub struct Stanza<'a> {
    pub function: FuncId,
    pub name: &'a str,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
    pub total_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
    pub parents: Vec<ArcOf<'a>>,
    pub children: Vec<ArcOf<'a>>,
    /// Time that belongs to callees of which the tree has nothing.
    pub not_in_callees: u64,
}

#[derive(Clone, Copy, Serialize)]
pub struct ArcOf<'a> {
    /// `null` for the start of a thread, unpatched code, or folded calls.
    pub function: Option<FuncId>,
    pub name: Option<&'a str>,
    #[serde(flatten)]
    pub site: SiteOf<'a>,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
    pub total_ns: u64,
    /// Least and most own time of one call on this arc, where one was timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
    #[serde(skip)]
    pub other: Caller,
}

impl<'a> Stanzas<'a> {
    pub fn new(profile: &'a Profile, selection: &Selection) -> Stanzas<'a> {
        let (mut shown, mut rest): (Vec<_>, Vec<_>) = stanzas(profile)
            .into_iter()
            .partition(|stanza| selection.keeps(stanza.own.function));
        shown.sort_by(|a, b| {
            order(profile, selection.sort, &a.own, &b.own)
                .then_with(|| name(profile, a.own.function).cmp(name(profile, b.own.function)))
        });
        if let Some(limit) = selection.limit {
            rest.extend(shown.drain(limit.min(shown.len())..));
        }
        let mut not_shown = LeftOut::default();
        rest.iter()
            .for_each(|stanza| not_shown.add(stanza.own.calls, stanza.own.self_ns));

        let bounds = Bounds::from_profile(profile);
        let stanzas = shown.iter().map(|stanza| {
            let own = &stanza.own;
            // As in the table of functions: what has not ended has neither.
            let ended = profile.meta.timed && own.max > 0;
            let parents = stanza.parents.iter();
            let children = stanza.children.iter();
            Stanza {
                function: own.function,
                name: name(profile, own.function),
                calls: own.calls,
                calls_at_least: bounds.function(own.function),
                self_ns: own.self_ns,
                total_ns: own.total_ns,
                min_ns: ended.then_some(own.min),
                max_ns: ended.then_some(own.max),
                parents: parents
                    .map(|arc| {
                        ArcOf::new(profile, arc, is_bound_parent(&bounds, own.function, arc))
                    })
                    .collect(),
                children: children
                    .map(|arc| ArcOf::new(profile, arc, is_bound_child(&bounds, own.function, arc)))
                    .collect(),
                not_in_callees: u64::try_from(stanza.not_in_callees).unwrap_or(0),
            }
        });
        Stanzas {
            schema: "thalweg.report.arcs/1",
            timed: profile.meta.timed,
            stanzas: stanzas.collect(),
            not_shown,
        }
    }
}

impl<'a> ArcOf<'a> {
    fn new(profile: &'a Profile, arc: &Arc, calls_at_least: bool) -> ArcOf<'a> {
        let function = match arc.other {
            Caller::Function(function) => Some(function),
            Caller::Outside | Caller::Unknown => None,
        };
        ArcOf {
            function,
            name: function.map(|function| name(profile, function)),
            site: SiteOf::new(profile, arc.site),
            calls: arc.calls,
            calls_at_least,
            self_ns: arc.self_ns,
            total_ns: arc.total_ns,
            min_ns: arc.extremes.map(|[min, _]| min),
            max_ns: arc.extremes.map(|[_, max]| max),
            other: arc.other,
        }
    }
}

/// Whether there may have been more calls of `own` by that parent.
pub fn is_bound_parent(bounds: &Bounds, own: FuncId, parent: &Arc) -> bool {
    bounds.call(parent.other, own)
}

/// Whether there may have been more calls of that child by `own`.
pub fn is_bound_child(bounds: &Bounds, own: FuncId, child: &Arc) -> bool {
    match child.other {
        Caller::Function(callee) => bounds.call(Caller::Function(own), callee),
        Caller::Outside | Caller::Unknown => bounds.function(own),
    }
}
