use std::fmt;

/// The kind of pages that the kernel used for the packet memory.
///
/// ```
/// use steerage_ledger::{Backing, Snapshot};
///
/// /// Advice for a slow start.
/// fn advice(snapshot: &Snapshot) -> Option<&'static str> {
///     (snapshot.backing == Backing::SmallPages).then_some("reserve huge pages: sysctl vm.nr_hugepages=512")
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// Reserved 2 MiB pages (`vm.nr_hugepages`).
    HugePages,
    /// 2 MiB pages (transparent huge pages) as far as the kernel finds some, else 4 KiB pages.
    TransparentHugePages,
    /// 4 KiB pages only.
    #[default]
    SmallPages,
    /// Memory that a device mapped.
    Foreign,
}

#[cfg(feature = "serde")]
impl Backing {
    pub(crate) const ALL: [Self; 4] = [Self::HugePages, Self::TransparentHugePages, Self::SmallPages, Self::Foreign];
}

impl From<steerage_mem::Backing> for Backing {
    fn from(backing: steerage_mem::Backing) -> Self {
        match backing {
            steerage_mem::Backing::HugePages => Self::HugePages,
            steerage_mem::Backing::TransparentHugePages => Self::TransparentHugePages,
            steerage_mem::Backing::SmallPages => Self::SmallPages,
            steerage_mem::Backing::Foreign => Self::Foreign,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HugePages => "huge pages",
            Self::TransparentHugePages => "transparent huge pages",
            Self::SmallPages => "small pages",
            Self::Foreign => "foreign memory",
        })
    }
}
