//! Tests of stages, plans and undo files, on fake machines and in network namespaces.

mod cards;
mod live;
mod made_up;
mod rules;
mod undo;
