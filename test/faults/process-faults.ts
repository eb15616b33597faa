/** Rows in which a process is killed. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { firstLineage } from '../../core/names.ts';
import { layout, stepOf } from '../../runs/layout.ts';
import { decodeJson } from '../../store/objects.ts';
import type { Row, Rows, Struck } from './row.ts';
import type { StagedRun } from './stage.ts';
import { until } from '../eventually.ts';

const lookMs = 20;

const killed = (role: string) =>
  ({ stage: 'fake', action: 'hold', strike: ({ stage }: Struck) => kill(stage, role) }) as const satisfies Row;

/** Embedded generation of a toy's chunk is over before a part of it is stored: there it is struck as it begins. */
const realGaps = { generate: { failpoint: 'playGroups.begun', at: 2 } } as const satisfies Row['gaps'];

const onRealEngine = { stage: 'real', action: 'hold', gaps: realGaps } as const;

/** The bits of the real engine where they are at stake; the other columns are the same processes with fakes in them. */
const killedOnRealEngine = (role: string): Row => ({
  ...killed(role),
  ...onRealEngine,
  columns: {
    only: ['warm-up', 'generate', 'train', 'trained', 'commit', 'checkpoint'],
    because: 'nothing of the engine is under way there; see the row of the same name without it',
  },
});

export const processFaults = {
  'orchestrator worker killed': { ...killed('orchestrator worker'), losesNothing: true },
  'rollout worker killed': killed('rollout worker'),
  'GPU worker killed': { ...killed('train worker'), losesNothing: true },
  'Temporal server killed': killed('Temporal server'),
  'GPU worker lost, another one takes over': {
    stage: 'two GPU workers',
    action: 'hold',
    strike: loseHolder,
    cannot: { open: 'no GPU worker has the run by then' },
    losesNothing: true,
  },
  'hand-back after retention': {
    stage: 'two GPU workers',
    action: 'hold',
    strike: handBack,
    steps: 9,
    // Retention then removes everything that the first worker would continue with.
    overrides: { 'checkpoints.interval': '1', 'checkpoints.keep-last': '1', 'max-off-policy-steps': '0' },
    columns: {
      only: ['generate', 'train', 'trained', 'commit'],
      because:
        'the run is handed over there and back later: what the first GPU worker holds of it is the same in the gaps between',
    },
    losesNothing: true,
  },
  'engine process killed (real engine)': {
    ...onRealEngine,
    // The base model is made without it: it begins with the first segment of the warm-up.
    gaps: { ...realGaps, 'warm-up': { failpoint: 'warmUp.done', at: 2 } },
    strike: killEngine,
  },
  'policy server killed (real engine)': { ...onRealEngine, strike: killPolicyServer },
  'GPU worker killed (real engine)': killedOnRealEngine('train worker'),
  'rollout worker killed (real engine)': killedOnRealEngine('rollout worker'),
  'Temporal server killed (real engine)': killedOnRealEngine('Temporal server'),
} satisfies Rows;

/** Returns when the supervisor has noticed. */
export async function kill(stage: Struck['stage'], role: string): Promise<void> {
  const restartsBefore = stage.stack.restarts()[role] ?? 0;
  process.kill(stage.pid(role), 'SIGKILL');
  await until(`another ${role}`, () => (stage.stack.restarts()[role] ?? 0) > restartsBefore, { everyMs: lookMs });
}

/** A host that is gone: what is started in its place is killed too, until the other worker has the run. */
export async function loseHolder({ stage, run, release }: Struck): Promise<void> {
  const { pid: lost } = await newestClaim(run);
  const role = roleOf(stage, lost);
  const [other] = Object.entries(stage.stack.pids()).find(
    ([name]) => name.startsWith('train worker') && name !== role,
  )!;
  // The cell before may have killed it: it is about to be back.
  await until(`the ${other}`, () => stage.stack.pids()[other] != null, { everyMs: lookMs });
  await killUntil({ stage, run }, { role, heir: stage.pid(other), release });
}

async function killUntil(
  { stage, run }: Pick<Struck, 'stage' | 'run'>,
  { role, heir, release }: { readonly role: string; readonly heir: number } & Pick<Struck, 'release'>,
): Promise<void> {
  for (let isReleased = false; (await newestClaim(run)).pid !== heir;) {
    const pid = stage.stack.pids()[role];
    if (pid != null) process.kill(pid, 'SIGKILL');
    if (!isReleased) release();
    isReleased = true;
    await delay(lookMs);
  }
}

function roleOf(stage: Struck['stage'], wanted: number): string {
  const role = Object.entries(stage.stack.pids()).find(([, pid]) => pid === wanted)?.[0];
  assert.ok(role, `process ${wanted} holds the run and is a GPU worker of this stage`);
  return role;
}

/** Steps that the second GPU worker makes before it is lost. */
const stepsBetween = 4;

/** The first worker sleeps. It wakes when the second one, which had the run in between, is lost. */
async function handBack({ stage, run, release, harmEnds }: Struck): Promise<void> {
  const { pid: first } = await newestClaim(run);
  process.kill(first, 'SIGSTOP');
  try {
    const goesOn = 'trainBatch.begun';
    stage.planBeside(goesOn, { at: stepsBetween + 1, action: 'hold' });
    release();
    assert.ok(await stage.fired(goesOn, run), 'the run is trained on');
    const { pid: second } = await newestClaim(run);
    assert.notEqual(second, first, 'another GPU worker has it');
    const batches = (await run.store.list(layout.allBatches(firstLineage))).map(stepOf);
    assert.ok(batches.length > 0 && batches.every((step) => step! > stepsBetween), `retention: ${batches.join(', ')}`);
    process.kill(first, 'SIGCONT');
    const back = { role: roleOf(stage, second), heir: first, release: () => stage.release(goesOn) };
    await killUntil({ stage, run }, back);
    harmEnds();
  } finally {
    process.kill(first, 'SIGCONT');
  }
}

/** Newest holder of the run: its name ends in its process id and a few random digits. */
export async function newestClaim({ store }: StagedRun): Promise<{ readonly pid: number }> {
  const keys = await store.list(layout.trainerClaims());
  const epochs = keys.map((key) => Number(/epoch_(\d+)/.exec(key)?.[1]));
  const key = layout.trainerClaim(Math.max(...epochs));
  const { holder } = decodeJson<{ readonly holder: string }>((await store.read(key))!, key);
  return { pid: Number(/-(\d+)-[0-9a-f]+$/.exec(holder)?.[1]) };
}

/** The GPU worker's child, which holds the weights. */
async function killEngine({ stage }: Struck): Promise<void> {
  const worker = stage.pid('train worker');
  const engine = processes().find(({ parent, command }) => parent === worker && isEngine(command));
  assert.ok(engine, `the GPU worker ${worker} has an engine process`);
  process.kill(engine.pid, 'SIGKILL');
  const isThere = (): boolean => processes().some(({ pid, command }) => pid === engine.pid && isEngine(command));
  await until('the end of the engine process', () => !isThere(), { everyMs: lookMs });
}

/** Built, or from source when it could not be built. */
function isEngine(command: string): boolean {
  return /[/]trainer(?:\.mjs|-main\.ts)(?:\s|$)/.test(command);
}

/** While it generates, it first stops answering, so that it dies with requests under way. */
async function killPolicyServer({ stage, column, release }: Struck): Promise<void> {
  if (column === 'generate') {
    process.kill(stage.pid('policy server'), 'SIGSTOP');
    release();
    await delay(500);
  }
  await kill(stage, 'policy server');
}

function processes(): { readonly pid: number; readonly parent: number; readonly command: string }[] {
  const listed = execFileSync('ps', ['-A', '-ww', '-o', 'pid=,ppid=,args='], { encoding: 'utf8' });
  return [...listed.matchAll(/^\s*(\d+)\s+(\d+)\s+(.*)$/gm)].map(([, pid, parent, command]) => ({
    pid: Number(pid),
    parent: Number(parent),
    command: command ?? '',
  }));
}
