#!/usr/bin/env node
/** The command. */
import { builtProgram, keepCompiled } from '../workers/built.mjs';

// What is written here is nobody's outside of the group: folders of runs, results, logs. What the umask denies the group stays denied.
process.umask(process.umask() | 0o007);
keepCompiled();
const built = await builtProgram();
if (built === undefined) (await import('tsx/esm/api')).register();
await import(built ?? './main.ts');
