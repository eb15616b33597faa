/** Runs with examples that never finish in time: their fate is as configured, and all of it is counted. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { auditStore } from '../../activities/audit-run.ts';
import { decodeJson, decodeRows } from '../../store/objects.ts';
import { describe as describeStatus } from '../../cli/describe/status.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { layout } from '../../runs/layout.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import { FaultStage, type StagedRun } from '../faults/stage.ts';
import { worthOf } from './late-environment.ts';

const environment = JSON.stringify(fileURLToPath(new URL('late-environment.ts', import.meta.url)));
/** 8 groups a step of 4 examples: each is drawn twice. Of a hard one 3 of 4 rollouts are not finished. */
const steps = 2;
const lateOfStep = 6;

/** At level 2 the late groups come together, and are most of what there is by then. */
const patient = { 'breaker.max_failed_share': '1', 'breaker.max_failed_groups': '100' };

let stage: FaultStage;
before(async () => {
  stage = await FaultStage.open('fake');
});
after(() => stage?.close());

async function trained(name: string, level: number, said: string): Promise<StagedRun> {
  const env = `[{ id = ${environment}, timeout = 2, ${said} }]`;
  const run = await stage.start(name, { steps, overrides: { env, max_async_level: String(level), ...patient } });
  const { step, ledger } = await run.handle.result();
  assert.deepEqual([step, ledger.isSound], [steps, true]);
  return run;
}

async function rolloutsOf({ store }: StagedRun) {
  const keys = (await store.list('rollouts/')).filter((key) => layout.isScored(key));
  const read = async (key: string) => decodeRows<ScoredGroup>((await store.read(key))!, key);
  return (await Promise.all(keys.map(read))).flat().flatMap(({ rollouts }) => rollouts);
}

async function commitsOf({ store }: StagedRun): Promise<StepCommit[]> {
  const keys = Array.from({ length: steps }, (_, i) => layout.commit('main', i + 1));
  return Promise.all(keys.map(async (key) => decodeJson<StepCommit>((await store.read(key))!, key)));
}

for (const level of [0, 2]) {
  test(`at level ${level}, rollouts that are not finished in time are dropped by name, and their group where too few are left`, async () => {
    const run = await trained(`drop-${level}`, level, 'on_timeout = "drop"');
    const late = (await rolloutsOf(run)).filter(({ outcome }) => outcome !== 'ok');
    assert.ok(late.length >= steps * lateOfStep);
    assert.ok(
      late.every(({ outcome, reward, turns }) => outcome === 'timeout' && reward === null && turns.length === 1),
    );
    const { lineages } = await auditStore({ name: run.name, store: stage.storeUri });
    assert.ok((lineages[0]!.counts['failed:timeout'] ?? 0) >= steps);
    assert.ok(lineages[0]!.timedOut['late-environment']! >= steps * lateOfStep);
  });

  test(`at level ${level}, they are truncated where the file says so: their groups are trained, and status, metrics and ledger count them`, async () => {
    const run = await trained(`truncate-${level}`, level, 'on_timeout = "truncate"');
    const late = (await rolloutsOf(run)).filter(({ outcome }) => outcome !== 'ok');
    assert.ok(late.length >= steps * lateOfStep);
    for (const { outcome, isTimedOut, reward, turns } of late) {
      assert.deepEqual([outcome, isTimedOut, turns.length], ['truncated', true, 1]);
      assert.equal(reward, worthOf(turns[0]!.text));
    }
    const commits = await commitsOf(run);
    const { counts, timedOut } = (await auditStore({ name: run.name, store: stage.storeUri })).lineages[0]!;
    assert.equal(counts['failed:timeout'], undefined);
    const ofSteps = commits.map(({ outcomes }) => outcomes.timedOut?.['late-environment'] ?? 0);
    assert.equal(timedOut['late-environment'], ofSteps[0]! + ofSteps[1]!);
    assert.deepEqual(
      ofSteps,
      commits.map(({ metrics }) => metrics['timed_out/late-environment'] ?? 0),
    );
    const status = await run.handle.query<RunStatus>('status');
    assert.equal(status.latest['timed_out/late-environment'] ?? 0, ofSteps[1]);
    const nothing = {
      retries: [],
      branches: {},
      stoppedBecause: null,
      waiting: null,
      temporalError: null,
      committed: null,
      otherVersions: [],
    };
    const report = {
      ...nothing,
      run: run.name,
      workflow: 'running',
      status,
      notices: [],
      damagedNotices: [],
      webhook: null,
      cost: null,
      curves: null,
      sinks: {},
      sinksError: null,
    };
    const lines = (await describeStatus(report)).join('\n');
    assert.equal(/out of time {3}late-environment (\d+) rollouts/.exec(lines)?.[1] ?? '0', String(ofSteps[1]));
  });
}
