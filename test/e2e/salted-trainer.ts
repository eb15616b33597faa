/**
 * The fault tests' trainer of nothing with the habits of a real one. `[trainer] kind = "module"`; options: { salts } = give other
 * bits in each process that trains, as an engine does that promises none; { canary } = tell the logprobs of a few tokens.
 */
import { createHash } from 'node:crypto';
import { copyFile, readdir, readFile, stat, writeFile } from 'node:fs/promises';
