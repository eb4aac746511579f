# GNU make
