package files_test

const crashEnv = "AGENT_RELAY_FILES_CRASH"

func crashHelper() {}
