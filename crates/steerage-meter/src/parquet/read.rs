//! Reads the Parquet files that this crate writes, for tests.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;

#[derive(Clone, Debug)]
enum Item {
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Item>),
    Fields(BTreeMap<u8, Item>),
}

impl Item {
    fn number(&self, field: u8) -> i64 {
        match self.get(field) {
            Some(Self::Number(number)) => *number,
            other => panic!("field {field} is {other:?}"),
        }
    }

    fn bytes(&self, field: u8) -> &[u8] {
        match self.get(field) {
            Some(Self::Bytes(bytes)) => bytes,
            other => panic!("field {field} is {other:?}"),
        }
    }

    fn list(&self, field: u8) -> &[Item] {
        match self.get(field) {
            Some(Self::List(list)) => list,
            other => panic!("field {field} is {other:?}"),
        }
    }

    fn get(&self, field: u8) -> Option<&Item> {
        let Self::Fields(fields) = self else { panic!("{self:?} is no structure") };
        fields.get(&field)
    }
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1)[0]
    }

    fn varint(&mut self) -> u64 {
        let byte = self.byte();
        let low = u64::from(byte & 0x7f);
        if byte < 0x80 { low } else { low | self.varint() << 7 }
    }

    fn zigzag(&mut self) -> i64 {
        let value = self.varint();
        (value >> 1) as i64 ^ -((value & 1) as i64)
    }

    fn item(&mut self, kind: u8) -> Item {
        match kind {
            1 => Item::Number(1),
            2 => Item::Number(0),
            3 => Item::Number(self.byte().into()),
            4..=6 => Item::Number(self.zigzag()),
            8 => {
                let length = self.varint() as usize;
                Item::Bytes(self.take(length).to_vec())
            }
            9 => {
                let head = self.byte();
                let length = if head >> 4 == 15 { self.varint() } else { u64::from(head >> 4) };
                Item::List((0..length).map(|_| self.item(head & 15)).collect())
            }
            12 => self.fields(),
            other => panic!("type {other}"),
        }
    }

    fn fields(&mut self) -> Item {
        let (mut fields, mut last) = (BTreeMap::new(), 0);
        loop {
            let head = self.byte();
            if head == 0 {
                return Item::Fields(fields);
            }
            last += head >> 4;
            fields.insert(last, self.item(head & 15));
        }
    }

    fn packed(&mut self, width: u32, count: usize) -> Vec<u64> {
        let bytes = self.take((width as usize * count).div_ceil(8));
        let bit = |at: usize| u64::from(bytes[at / 8] >> (at % 8) & 1);
        let value = |nth: usize| (0..width as usize).map(|at| bit(nth * width as usize + at) << at).sum();
        (0..count).map(value).collect()
    }

    fn runs(&mut self, width: u32, count: usize) -> Vec<u32> {
        let mut values: Vec<u32> = Vec::new();
        while values.len() < count {
            let head = self.varint();
            if head & 1 == 1 {
                values.extend(self.packed(width, (head >> 1) as usize * 8).into_iter().map(|value| value as u32));
            } else {
                let value =
                    self.packed(8, width.div_ceil(8) as usize).iter().rev().fold(0, |all, byte| all << 8 | byte);
                values.extend(std::iter::repeat_n(value as u32, (head >> 1) as usize));
            }
        }
        values.truncate(count);
        values
    }

    fn differences(&mut self) -> Vec<i64> {
        let (block, parts, count) = (self.varint() as usize, self.varint() as usize, self.varint() as usize);
        let mut values = vec![self.zigzag()];
        while values.len() < count {
            let least = self.zigzag();
            let widths = self.take(parts);
            for width in widths {
                if values.len() >= count {
                    assert_eq!(*width, 0);
                    continue;
                }
                for above in self.packed((*width).into(), block / parts) {
                    values.push(values.last().unwrap().wrapping_add(least).wrapping_add(above as i64));
                }
            }
        }
        values.truncate(count);
        values
    }

    fn plain(&mut self, kind: i64, count: usize) -> Vec<Vec<u8>> {
        let one = |_| {
            let length = match kind {
                1 => 4,
                2 => 8,
                _ => u32::from_le_bytes(self.take(4).try_into().unwrap()) as usize,
            };
            self.take(length).to_vec()
        };
        (0..count).map(one).collect()
    }

    fn page(&mut self) -> (Item, Vec<u8>) {
        let header = self.fields();
        let mut bytes = Vec::new();
        GzDecoder::new(self.take(header.number(3) as usize)).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as i64, header.number(2));
        (header, bytes)
    }
}

fn footer(file: &[u8]) -> Item {
    let rest = file.strip_suffix(b"PAR1").unwrap();
    let (rest, length) = rest.split_at(rest.len() - 4);
    let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
    assert!(rest.len() >= length + 4 && rest.starts_with(b"PAR1"));
    Cursor(&rest[rest.len() - length..]).fields()
}

pub(crate) fn count(file: &[u8]) -> usize {
    let rows = rows(file).1.len();
    assert_eq!(rows as i64, footer(file).number(3));
    rows
}

pub(super) fn names(file: &[u8]) -> Vec<String> {
    let of = |field: &Item| String::from_utf8(field.bytes(4).to_vec()).unwrap();
    footer(file).list(2)[1..].iter().map(of).collect()
}

pub(super) fn rows(file: &[u8]) -> (Vec<usize>, Vec<Vec<String>>) {
    let footer = footer(file);
    let fields = &footer.list(2)[1..];
    let (mut groups, mut rows) = (Vec::new(), Vec::new());
    for group in footer.list(4) {
        let count = group.number(3) as usize;
        groups.push(count);
        let columns: Vec<Vec<String>> =
            group.list(1).iter().zip(fields).map(|(chunk, field)| column(file, chunk, field, count)).collect();
        let bytes: i64 = group.list(1).iter().map(|chunk| chunk.get(3).unwrap().number(6)).sum();
        assert_eq!(bytes, group.number(2));
        rows.extend((0..count).map(|row| columns.iter().map(|column| column[row].clone()).collect()));
    }
    (groups, rows)
}

fn column(file: &[u8], chunk: &Item, field: &Item, rows: usize) -> Vec<String> {
    let about = chunk.get(3).unwrap();
    let kind = about.number(1);
    let mut cursor = Cursor(&file[chunk.number(2) as usize..]);
    let before = cursor.0.len();
    let entries = about.get(11).map(|_| {
        let (header, bytes) = cursor.page();
        Cursor(&bytes).plain(kind, header.get(7).unwrap().number(1) as usize)
    });
    assert_eq!(file.len() - cursor.0.len(), about.number(9) as usize);
    let (header, bytes) = cursor.page();
    assert_eq!((before - cursor.0.len()) as i64, about.number(7));
    let mut page = Cursor(&bytes);
    let present = match field.number(3) {
        0 => vec![1; rows],
        _ => {
            let length = u32::from_le_bytes(page.take(4).try_into().unwrap()) as usize;
            Cursor(page.take(length)).runs(1, rows)
        }
    };
    let count = present.iter().filter(|level| **level == 1).count();
    let encoding = header.get(5).unwrap().number(2);
    let values: Vec<Vec<u8>> = match (encoding, entries) {
        (5, None) => page.differences().into_iter().map(|value| value.to_le_bytes().to_vec()).collect(),
        (0, None) => page.plain(kind, count),
        (8, Some(entries)) => {
            let width = page.byte();
            page.runs(width.into(), count).into_iter().map(|index| entries[index as usize].clone()).collect()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((values.len(), page.0.len()), (count, 0));
    let about_values = about.get(12).unwrap();
    assert_eq!(about_values.number(3) as usize, rows - count);
    if about_values.get(5).is_some() {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        let (least, largest) = (about_values.bytes(6), about_values.bytes(5));
        let is_within = |value: &Vec<u8>| match kind {
            6 => least <= &value[..] && &value[..] <= largest,
            _ => (number(least)..=number(largest)).contains(&number(value)),
        };
        assert!(values.iter().all(is_within));
    }
    let text = |value: Vec<u8>| match kind {
        1 => u32::from_le_bytes(value.try_into().unwrap()).to_string(),
        2 => u64::from_le_bytes(value.try_into().unwrap()).to_string(),
        _ => String::from_utf8(value).unwrap(),
    };
    let mut values = values.into_iter().map(text);
    present.into_iter().map(|level| if level == 1 { values.next().unwrap() } else { String::new() }).collect()
}
