//! Tests of stages, plans and undo files, on made-up machines and in network namespaces.

mod live;
mod made_up;
mod undo;
