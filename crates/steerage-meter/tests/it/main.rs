//! Tests of the meter with capture files, most of which compare it with tshark.

mod meter_captures;
mod moves;
mod packet_times;
mod parts;
mod super_frames;
mod tcp_health;
