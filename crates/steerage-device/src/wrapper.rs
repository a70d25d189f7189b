//! Wrappers: devices around a device.

/// Delegates all methods of [`RxQueue`](steerage::device::RxQueue) except `poll` to `self.queue`. All wrappers use it, so a
/// method that is added to the trait has to be added in one place only.
macro_rules! delegate_to_queue {
    () => {
        fn memory(&mut self) -> Result<steerage::device::QueueMemory, steerage::DeviceError> {
            self.queue.memory()
        }

        fn posted_max(&self) -> usize {
            self.queue.posted_max()
        }

        fn segments_max(&self) -> usize {
            self.queue.segments_max()
        }

        fn mapped(&mut self, region: &std::sync::Arc<steerage::device::Region>) -> Result<(), steerage::DeviceError> {
            self.queue.mapped(region)
        }

        fn mode(&self) -> Option<&'static str> {
            self.queue.mode()
        }

        fn link(&self) -> steerage::LinkType {
            self.queue.link()
        }

        fn wait_on(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            self.queue.wait_on()
        }

        fn can_wait(&self) -> bool {
            self.queue.can_wait()
        }

        fn has_room(&self) -> bool {
            self.queue.has_room()
        }

        fn stop(&mut self) -> bool {
            self.queue.stop()
        }

        fn close(&mut self, pages: &mut Vec<steerage::device::Page>) {
            self.queue.close(pages);
        }

        fn device_hash(&self) -> Option<steerage::Affinity> {
            self.queue.device_hash()
        }
    };
}

pub(crate) use delegate_to_queue;
