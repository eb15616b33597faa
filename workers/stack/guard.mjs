/**
 * Ends process groups once their supervisor is gone. A supervisor killed with -9 cannot clean up, but this process's
 * stdin then closes, and that is the sign. Input lines: `+ RANK PGID` (a group lives), `- PGID` (it is gone). Ranks end
 * in ascending order: workers (0) before the server (1), since they send their last reports to it.
 */
import { setTimeout as sleep } from 'node:timers/promises';

/** Time between SIGTERM and SIGKILL of a group. */
const graceMs = 2_000;

/** @type {Map<number, number>} */
const rankOfGroup = new Map();
let rest = '';

process.stdin.setEncoding('utf8');
process.stdin.on('data', (/** @type {string} */ chunk) => {
  const lines = (rest + chunk).split('\n');
  rest = lines.pop() ?? '';
  for (const line of lines) learn(line);
});
process.stdin.on('end', () => void endAll());
process.stdin.on('error', () => void endAll());

// A Ctrl-C or a closed terminal is for the supervisor to answer, not for us.
for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) process.on(signal, () => {});

/** @param {string} line */
function learn(line) {
  const [sign, first, second] = line.split(' ');
  if (sign === '+') rankOfGroup.set(Number(second), Number(first));
  if (sign === '-') rankOfGroup.delete(Number(first));
}

async function endAll() {
  const ranks = [...new Set(rankOfGroup.values())].sort((a, b) => a - b);
  for (const rank of ranks) {
    await endGroups([...rankOfGroup].filter(([, other]) => other === rank).map(([group]) => group));
  }
  process.exit(0);
}

/** @param {number[]} groups */
async function endGroups(groups) {
  // A stopped process receives SIGTERM only after SIGCONT.
  for (const group of groups) signalGroup(group, 'SIGTERM');
  for (const group of groups) signalGroup(group, 'SIGCONT');
  const deadline = Date.now() + graceMs;
  while (Date.now() < deadline && groups.some((group) => signalGroup(group, 0))) await sleep(20);
  for (const group of groups) signalGroup(group, 'SIGKILL');
}

/**
 * @param {number} group
 * @param {NodeJS.Signals | 0} signal
 */
function signalGroup(group, signal) {
  if (!Number.isSafeInteger(group) || group <= 1) return false;
  try {
    process.kill(-group, signal);
    return true;
  } catch {
    return false;
  }
}
