#!/usr/bin/perl
# dh $@ --with sframe

use strict;
use warnings;
use Debian::Debhelper::Dh_Lib;

insert_after('dh_strip', 'dh_sframe');

1;
