/**
 * An orchestrator of another version, on a server where it takes nothing over by itself: messages to the user, and
 * possible actions.
 */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import type { Role } from '../../workers/stack/supervisor.ts';
import type { RunStatus } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { eventually } from '../eventually.ts';
import { fakeRun } from '../faults/fake-run.ts';
import { startCluster } from './orchestrator-cluster.ts';
import { repositoryFolder } from './small-run.ts';
import {
  otherOrder,
  type OtherVersion,
  rolesOf,
  RunningCommand,
  thisVersion,
  withoutActivity,
} from '../faults/upgrade.ts';

/** More than there is time for: each run is ended by the test. */
const steps = 1_000;

test('a run that the new orchestrator cannot continue with says why; it can be moved to the new version, or stopped, and nothing is lost', async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-cluster-'));
  t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  await mkdir(path.join(folder, 'outputs'));
  const version = await otherOrder(folder);
  const ratchet = async (...args: string[]): Promise<[number | null, string]> => {
    const command = new RunningCommand(version, args, { folder, environment: process.env });
    return [await command.ended, command.said];
  };

  const before = await startCluster(t, folder, null);
  const names = ['moved', 'stopped'] as const;
  for (const name of names) {
    const log = path.join(folder, `${name}.sampled`);
    await writeFile(path.join(folder, `${name}.toml`), fakeRun({ steps, log }));
    await before.start(name);
  }
  for (const name of names) await before.status(name, ({ step }) => step >= 1);
  await before.stop();

  const after = await startCluster(t, folder, version);
  const [, said] = await eventually(
    'a status that names the cause',
    () => ratchet('status', 'moved'),
    ([, text]) => /TMPRL1100/.test(text),
  );
  assert.match(said, /of another version: it cannot continue .* `npx ratchet-rl upgrade moved` moves it/s);

  const [code, stopped] = await ratchet('stop', 'stopped', '--now');
  assert.equal(code, 0, stopped);
  assert.match(stopped, /^stopped: running → terminated\. What is committed stays/);

  assert.match((await ratchet('upgrade', 'moved'))[1], /moved: continues from its newest commit/);
  // as after any end: from its newest commit
  await after.start('stopped');
  for (const name of names) {
    await after.status(name, ({ step }) => step >= 1);
    await after.end(name);
    const { step, ledger } = await after.client.workflow.getHandle<typeof trainRun>(name).result();
    assert.ok(step > 1);
    assert.equal(ledger.isSound, true);
  }
  assert.match((await ratchet('upgrade', 'moved'))[1], /is not running/);
});

test('where the server has worker deployments an open run stays with its version; it says so when that is gone, and can be moved', async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-pinned-'));
  t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  await mkdir(path.join(folder, 'outputs'));
  const newer = await otherOrder(folder);
  const { address, client, status, ...cluster } = await startCluster(t, folder, null, { hasOrchestrator: false });
  const environment = {
    ...process.env,
    TEMPORAL_ADDRESS: address,
    RATCHET_CODE_ROOTS: path.join(repositoryFolder, 'test'),
  };
  const orchestrator = async (version: OtherVersion): Promise<RunningCommand> => {
    const command = new RunningCommand(version, ['worker', '--role', 'orchestrator'], { folder, environment });
    t.after(() => command.stop());
    await command.says(/new runs begin under it/);
    return command;
  };
  const stepOf = async (name: string): Promise<number> =>
    ((await status(name, ({ step }) => step >= 1)) as RunStatus).step;
  const versionOf = async (name: string): Promise<string | null | undefined> =>
    (await client.workflow.getHandle(name).describe()).raw.workflowExecutionInfo?.versioningInfo?.deploymentVersion
      ?.buildId;

  const older = await orchestrator(thisVersion);
  for (const name of ['stays', 'later'])
    await writeFile(path.join(folder, `${name}.toml`), fakeRun({ steps, log: path.join(folder, `${name}.sampled`) }));
  await cluster.start('stays');
  const before = await stepOf('stays');
  const newest = await orchestrator(newer);
  await status('stays', ({ step }) => step > before + 2);
  await cluster.start('later');
  await stepOf('later');
  const [first, second] = [await versionOf('stays'), await versionOf('later')];
  assert.ok(first && second && first !== second, `${first}, ${second}`);

  await older.stop();
  const ratchet = async (...args: string[]): Promise<string> => {
    const command = new RunningCommand(newer, args, { folder, environment });
    await command.ended;
    return command.said;
  };
  await eventually(
    'what the run waits for',
    () => ratchet('status', 'stays'),
    (said) => /no orchestrator of its version/.test(said),
  );
  assert.match(await ratchet('upgrade', 'stays'), /stays: continues from its newest commit/);
  await status('stays', ({ step }) => step > before + 2);
  assert.equal(await versionOf('stays'), second);

  // The server gets an orchestrator of its own, which has no version: also of the same code.
  await newest.stop();
  const alone = new RunningCommand(newer, ['--role', 'orchestrator', '--take-over'], {
    folder,
    environment,
    program: 'workers/main.ts',
  });
  t.after(() => alone.stop());
  await alone.says(/orchestrator worker ready/);
  for (const name of ['stays', 'later']) {
    assert.match(alone.said, new RegExp(`upgrade: run ${name} continues from its newest commit`));
    const reached = await stepOf(name);
    await status(name, ({ step }) => step > reached + 1);
  }
  for (const name of ['stays', 'later']) await cluster.end(name);
  const { ledger } = await client.workflow.getHandle<typeof trainRun>('stays').result();
  assert.equal(ledger.isSound, true);
});

test('a fleet of 20 open runs goes to another version and back while they train, with nothing lost', async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-fleet-'));
  t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  await mkdir(path.join(folder, 'outputs'));
  const newer = await otherOrder(folder);
  const { address, client, ...cluster } = await startCluster(t, folder, null, { hasOrchestrator: false });
  const environment = {
    ...process.env,
    TEMPORAL_ADDRESS: address,
    RATCHET_CODE_ROOTS: path.join(repositoryFolder, 'test'),
  };
  const orchestrator = async (version: OtherVersion): Promise<RunningCommand> => {
    const command = new RunningCommand(version, ['worker', '--role', 'orchestrator'], { folder, environment });
    t.after(() => command.stop());
    await command.says(/of the workflow code: new runs begin under/);
    return command;
  };
  const ratchet = async (version: OtherVersion, ...args: string[]): Promise<[number | null, string]> => {
    const command = new RunningCommand(version, args, { folder, environment });
    return [await command.ended, command.said];
  };
  const handleOf = (name: string) => client.workflow.getHandle<typeof trainRun>(name);
  const versionsOfOpen = async (): Promise<Set<string>> => {
    const found = new Set<string>();
    for (const name of names) {
      const { raw, status } = await handleOf(name).describe();
      if (status.name === 'RUNNING')
        found.add(raw.workflowExecutionInfo?.versioningInfo?.deploymentVersion?.buildId ?? '');
    }
    return found;
  };
  const names = Array.from({ length: 20 }, (_, i) => `run-${i + 1}`);
  const steps = 16; // two GPU workers train two runs, and the others wait
  for (const name of ['alone', ...names])
    await writeFile(
      path.join(folder, `${name}.toml`),
      fakeRun({ steps, log: path.join(folder, `${name}.sampled`), stepMs: 500 }),
    );

  await orchestrator(thisVersion);
  await cluster.start('alone');
  const alone = await handleOf('alone').result();
  for (const name of names) await cluster.start(name);
  for (const name of names) await cluster.status(name, ({ step }) => step >= 0);
  const before = await versionsOfOpen();
  const newest = await orchestrator(newer);

  const [, planned] = await ratchet(newer, 'upgrade', '--dry-run');
  assert.match(planned, /^run-\d+ \(step \d+, version [0-9a-f]{8}\): moves after the end of its step \d+$/m);
  assert.match(planned, /^run-\d+ \(step 0, version [0-9a-f]{8}\): moves at once$/m);
  assert.deepEqual(await versionsOfOpen(), before, 'a dry run moves nothing');
  const [code, said] = await ratchet(newer, 'upgrade');
  assert.equal(code, 0, said);
  const after = await versionsOfOpen();
  assert.equal(after.size, 1, said);
  assert.notDeepEqual(after, before);

  await newest.stop(); // its successor does not take the runs back after the downgrade
  await orchestrator(newer);
  const [back, saidBack] = await ratchet(thisVersion, 'upgrade');
  assert.equal(back, 0, saidBack);
  assert.deepEqual(await versionsOfOpen(), before, saidBack);
  await orchestrator(newer);
  t.diagnostic(`${said}\n${saidBack}`);

  for (const name of names) {
    const { step, ledger, policyDigest } = await handleOf(name).result();
    assert.deepEqual([step, ledger.isSound, policyDigest], [steps, true, alone.policyDigest], name);
  }
  const [again, left] = await ratchet(thisVersion, 'upgrade');
  assert.equal(again, 0);
  assert.match(left, /^version [0-9a-f]{8}: nothing is pinned to it; end its orchestrators/);
});

test('a rollout worker of another version is named with its machine; another worker does its work', async (t) => {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-versions-'));
  t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  await mkdir(path.join(folder, 'outputs'));
  const older = await withoutActivity(folder, 'playGroups');
  const changeRole = (role: Role): Role => (role.name === 'rollout worker' ? rolesOf(older, [role])[0]! : role);
  const { address, client, pid, ...cluster } = await startCluster(t, folder, null, { changeRole });
  const environment = {
    ...process.env,
    TEMPORAL_ADDRESS: address,
    RATCHET_CODE_ROOTS: path.join(repositoryFolder, 'test'),
  };
  const ratchet = async (...args: string[]): Promise<string> => {
    const command = new RunningCommand(thisVersion, args, { folder, environment });
    await command.ended;
    return command.said;
  };
  await writeFile(path.join(folder, 'named.toml'), fakeRun({ steps: 2, log: path.join(folder, 'named.sampled') }));
  await cluster.start('named');
  const said = await eventually(
    'a status that names the worker',
    () => ratchet('status', 'named'),
    (text) => /has no activity/.test(text),
  );
  const worker = `the rollout worker ${pid('rollout worker')}@${os.hostname()}`;
  assert.ok(
    said.includes(`${worker} has no activity playGroups: it is of another version than the orchestrator`),
    said,
  );
  const named = new RegExp(
    `${worker.replaceAll('.', '\\.')} is of another version \\(code [0-9a-f]{8}\\) than the others`,
  );
  assert.match(said, named);
  assert.match(await ratchet('events', 'named'), named);

  const right = new RunningCommand(thisVersion, ['worker', '--role', 'rollout'], { folder, environment });
  t.after(() => right.stop());
  const { step, ledger } = await client.workflow.getHandle<typeof trainRun>('named').result();
  assert.deepEqual([step, ledger.isSound], [2, true]);
});
