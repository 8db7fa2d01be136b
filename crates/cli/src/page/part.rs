//! Parts of the profile that were looked at lately, each with what is worth keeping between two queries.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use thalweg_analysis::FlowContexts;
use thalweg_analysis::{
    FunctionTotals, Lanes, Part, Patterns, PipelineError, Stanza, Weight, by_metric, flat,
    inverted, select, stanzas, together, waited_by_context,
};
use thalweg_model::{FuncId, Metric, Profile, Thread};

/// Going back and forth between a few is quick; each may be as large as the profile.
const CACHED_PARTS: usize = 4;

pub struct Parts {
    profile: Arc<Profile>,
    whole: Arc<Cut>,
    recent: Mutex<VecDeque<(Part, Arc<Cut>)>>,
}

impl Parts {
    pub fn from_profile(profile: Arc<Profile>) -> Parts {
        Parts {
            whole: Arc::new(Cut::new(profile.clone(), None)),
            profile,
            recent: Mutex::default(),
        }
    }

    pub fn get(&self, part: &Part) -> Arc<Cut> {
        if part.is_all() {
            return self.whole.clone();
        }
        let mut recent = self
            .recent
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(place) = recent.iter().position(|(known, _)| known == part)
            && let Some(found) = recent.remove(place)
        {
            recent.push_front(found);
        } else {
            let selected = select(&self.profile, part).into_owned();
            let cut = Arc::new(Cut::new(Arc::new(selected), part.root));
            recent.push_front((part.clone(), cut));
            recent.truncate(CACHED_PARTS);
        }
        recent[0].1.clone()
    }
}

/// How a profile is looked at before a part of it is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lens {
    pub patterns: Patterns,
    /// In the place of time.
    pub metric: Option<Metric>,
    /// A part of the time, by samples.
    pub span: Option<(u64, u64)>,
}

impl Lens {
    /// Whether the profile is seen as it is.
    pub fn shows_all(&self, profile: &Profile) -> bool {
        self.metric.is_none() && self.span.is_none() && self.patterns.show_all(profile)
    }
}

/// The profile through those lenses that were asked for lately.
#[derive(Default)]
pub struct Seen {
    recent: Mutex<VecDeque<(Lens, Arc<Parts>)>>,
}

/// Each is as large as the profile.
const CACHED_LENSES: usize = 3;

impl Seen {
    pub fn get(
        &self,
        profile: &Profile,
        lanes: &Lanes,
        lens: &Lens,
    ) -> Result<Arc<Parts>, PipelineError> {
        let mut recent = self
            .recent
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, parts)) = recent.iter().find(|(known, _)| known == lens) {
            return Ok(parts.clone());
        }
        let weighed = match (lens.span, lens.metric) {
            (Some((from, to)), _) => lanes.between(profile, from, to),
            (None, Some(metric)) => by_metric(profile.clone(), metric),
            (None, None) => profile.clone(),
        };
        let parts = Arc::new(Parts::from_profile(Arc::new(lens.patterns.apply(weighed)?)));
        recent.push_front((lens.clone(), parts.clone()));
        recent.truncate(CACHED_LENSES);
        Ok(parts)
    }
}

/// A part as a profile of its own; what is derived from it is made when it is first asked for.
pub struct Cut {
    profile: Arc<Profile>,
    root: Option<FuncId>,
    flat: OnceLock<Vec<FunctionTotals>>,
    stanzas: OnceLock<Vec<Stanza>>,
    waits: OnceLock<(Vec<u64>, bool)>,
    tree: OnceLock<Thread>,
    inverted: OnceLock<Thread>,
    flows: [OnceLock<FlowContexts>; 3],
}

impl Cut {
    fn new(profile: Arc<Profile>, root: Option<FuncId>) -> Cut {
        Cut {
            profile,
            root,
            flat: OnceLock::new(),
            stanzas: OnceLock::new(),
            waits: OnceLock::new(),
            tree: OnceLock::new(),
            inverted: OnceLock::new(),
            flows: [const { OnceLock::new() }; 3],
        }
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    pub fn root(&self) -> Option<FuncId> {
        self.root
    }

    pub fn flat(&self) -> &[FunctionTotals] {
        self.flat.get_or_init(|| flat(&self.profile))
    }

    pub fn stanzas(&self) -> &[Stanza] {
        self.stanzas.get_or_init(|| stanzas(&self.profile))
    }

    /// What each function waited, and whether that was measured and is no part of its time.
    pub fn waits(&self) -> &(Vec<u64>, bool) {
        self.waits.get_or_init(|| {
            if self.profile.meta.weighed_by.is_some() {
                return (vec![0; self.profile.functions.len()], false);
            }
            let (by_context, measured) = waited_by_context(&self.profile);
            let mut waits = vec![0u64; self.profile.functions.len()];
            for ((_, thread), waited) in thalweg_analysis::threads(&self.profile).zip(by_context) {
                for (node, waited) in thread.nodes.iter().zip(waited) {
                    let sum = &mut waits[node.function.index()];
                    *sum = sum.saturating_add(waited);
                }
            }
            (waits, measured)
        })
    }

    /// All threads laid over each other.
    pub fn tree(&self) -> &Thread {
        self.tree.get_or_init(|| together(&self.profile))
    }

    /// The same upside down: who keeps the time, and who called that.
    pub fn inverted(&self) -> &Thread {
        self.inverted.get_or_init(|| inverted(&self.profile))
    }

    pub fn flow(&self, weight: Weight) -> &FlowContexts {
        let place = match weight {
            Weight::Time => 0,
            Weight::Calls => 1,
            Weight::Wall => 2,
        };
        self.flows[place]
            .get_or_init(|| FlowContexts::from_profile(&self.profile, self.root, weight))
    }
}
