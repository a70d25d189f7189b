//! Thrift's compact protocol, in which Parquet files describe their contents and pages.

use super::encode::{varint, zigzag};

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// The fields of a Thrift structure must be written in the order of their numbers.
pub(super) struct Thrift<'a> {
    to: &'a mut Vec<u8>,
    last: u8,
}

pub(super) fn structure(fields: impl FnOnce(&mut Thrift<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, fields);
    bytes
}

fn append(to: &mut Vec<u8>, fields: impl FnOnce(&mut Thrift<'_>)) {
    fields(&mut Thrift { to, last: 0 });
    to.push(0);
}

impl Thrift<'_> {
    fn field(&mut self, number: u8, kind: u8) {
        debug_assert!(number > self.last && number - self.last < 16, "{number} after {}", self.last);
        self.to.push((number - self.last) << 4 | kind);
        self.last = number;
    }

    pub(super) fn boolean(&mut self, number: u8, value: bool) {
        self.field(number, if value { TRUE } else { FALSE });
    }

    pub(super) fn byte(&mut self, number: u8, value: u8) {
        self.field(number, BYTE);
        self.to.push(value);
    }

    pub(super) fn i32(&mut self, number: u8, value: i32) {
        self.field(number, I32);
        zigzag(value.into(), self.to);
    }

    pub(super) fn i64(&mut self, number: u8, value: u64) {
        self.field(number, I64);
        zigzag(value as i64, self.to);
    }

    pub(super) fn binary(&mut self, number: u8, value: &[u8]) {
        self.field(number, BINARY);
        bytes(value, self.to);
    }

    pub(super) fn structure(&mut self, number: u8, fields: impl FnOnce(&mut Thrift<'_>)) {
        self.field(number, STRUCT);
        append(self.to, fields);
    }

    pub(super) fn numbers(&mut self, number: u8, of: &[i32]) {
        self.list(number, of.len(), I32);
        of.iter().for_each(|value| zigzag((*value).into(), self.to));
    }

    pub(super) fn texts(&mut self, number: u8, of: &[&str]) {
        self.list(number, of.len(), BINARY);
        of.iter().for_each(|text| bytes(text.as_bytes(), self.to));
    }

    pub(super) fn structures<T>(&mut self, number: u8, of: &[T], fields: impl Fn(&mut Thrift<'_>, &T)) {
        self.list(number, of.len(), STRUCT);
        of.iter().for_each(|one| append(self.to, |to| fields(to, one)));
    }

    fn list(&mut self, number: u8, length: usize, kind: u8) {
        self.field(number, LIST);
        if length < 15 {
            self.to.push((length as u8) << 4 | kind);
        } else {
            self.to.push(0xf0 | kind);
            varint(length as u64, self.to);
        }
    }
}

fn bytes(value: &[u8], to: &mut Vec<u8>) {
    varint(value.len() as u64, to);
    to.extend_from_slice(value);
}
