/// Delegates all methods of [`RxQueue`](steerage::device::RxQueue) except `poll` to `self.queue`,
/// so that wrappers also delegate new methods of the trait.
macro_rules! delegate_to_queue {
    () => {
        fn capabilities(&self) -> steerage::device::Capabilities {
            self.queue.capabilities()
        }

        crate::wrapper::delegate_to_queue!(except capabilities);
    };
    (except capabilities) => {
        fn open(
            &mut self,
            region: &std::sync::Arc<steerage::device::Region>,
        ) -> Result<steerage::device::Opened, steerage::DeviceError> {
            self.queue.open(region)
        }

        fn wait_on(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.queue.wait_on()
        }

        fn has_room(&self) -> bool {
            self.queue.has_room()
        }

        fn stop(&mut self) -> bool {
            self.queue.stop()
        }

        fn close(&mut self, region: &steerage::device::Region, pages: &mut Vec<steerage::device::Page>) {
            self.queue.close(region, pages);
        }
    };
}

pub(crate) use delegate_to_queue;
