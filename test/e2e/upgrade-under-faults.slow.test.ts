/** `ratchet upgrade` while something dies: the command itself, an orchestrator of either version, or a worker. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { test, type TestContext } from 'node:test';
import { isRolloutsWorkflowOf } from '../../core/names.ts';
import { auditLedger } from '../../core/rl/ledger.ts';
import type { StepCommit } from '../../core/rl/run-state.ts';
import { workflowCodeVersion } from '../../workers/program/workflow-bundle.ts';
import { takeOverRun, versionOf } from '../../workers/stack/take-over.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { until } from '../eventually.ts';
import { fakeRun } from '../faults/fake-run.ts';
import type { TrainedLine } from '../faults/fake-trainer.ts';
import { otherOrder, type OtherVersion, RunningCommand, thisVersion } from '../faults/upgrade.ts';
import { startCluster } from './orchestrator-cluster.ts';
import { repositoryFolder } from './small-run.ts';

const steps = 24;

test('the command is killed at several places of a walk, up and down; typed again it ends with all runs moved', async (t) => {
  const fleet = await Fleet.open(t, 5);
  const { newer, names } = fleet;
  await fleet.orchestrator(newer);

  // Killed right after it has begun a run anew: what generated its rounds is still at work.
  const [one = ''] = names;
  await takeOverRun({ client: fleet.client, version: await workflowCodeVersion(newer.folder) }, one);
  const [code, said] = await fleet.ratchet(newer, 'upgrade', one);
  assert.equal(code, 0, said);
  assert.deepEqual(await fleet.oldFlowsOf(one, newer), [], said);

  const up = await fleet.walkKilledAt([/waits for: /, /continues from/, /continues from/], newer);
  await fleet.isAllUnder(newer, up);
  const down = await fleet.walkKilledAt(
    [/new runs begin under version/, /continues from/, /continues from/],
    thisVersion,
  );
  await fleet.isAllUnder(thisVersion, down);
  t.diagnostic(`${up}\n${down}`);
  await fleet.judge({ walks: 2 });
});

test('orchestrators of both versions, a rollout worker and a GPU worker are killed during a walk up and one down', async (t) => {
  const fleet = await Fleet.open(t, 5);
  const { newer } = fleet;
  await fleet.orchestrator(newer);
  for (const to of [newer, thisVersion]) {
    const walk = fleet.command(to, 'upgrade');
    await walk.says(/continues from|waits for/);
    const strikes = [
      () => fleet.killOrchestrator(to === newer ? thisVersion : newer),
      () => fleet.killOrchestrator(to),
      () => fleet.killWorker('rollout worker'),
      () => fleet.killWorker('train worker'),
    ];
    // All are away at the same time.
    const back: Promise<void>[] = [];
    for (const strike of strikes) {
      assert.ok(walk.isRunning, `the walk was over before ${strike.toString()}\n${walk.said}`);
      back.push(strike());
      await delay(200);
    }
    await Promise.all(back);
    assert.equal(await walk.ended, 0, walk.said);
    await fleet.isAllUnder(to, walk.said);
    t.diagnostic(walk.said);
  }
  await fleet.judge({ walks: 2 });
});

type Cluster = Awaited<ReturnType<typeof startCluster>>;

/** Runs that train while they are moved between this version and another one. */
class Fleet {
  readonly #t: TestContext;
  readonly #folder: string;
  readonly #cluster: Cluster;
  readonly #orchestrators = new Map<OtherVersion, RunningCommand>();
  readonly newer: OtherVersion;
  readonly names: readonly string[];
  /** Digest of the weights of a run that nothing disturbs. */
  #alone = '';

  private constructor(t: TestContext, folder: string, newer: OtherVersion, cluster: Cluster, runs: number) {
    this.#t = t;
    this.#folder = folder;
    this.newer = newer;
    this.#cluster = cluster;
    this.names = Array.from({ length: runs }, (_, i) => `run-${i + 1}`);
  }

  static async open(t: TestContext, runs: number): Promise<Fleet> {
    const folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-walk-'));
    t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
    await mkdir(path.join(folder, 'outputs'));
    const newer = await otherOrder(folder);
    const cluster = await startCluster(t, folder, null, { hasOrchestrator: false, gpuWorkers: 3 });
    const fleet = new Fleet(t, folder, newer, cluster, runs);
    await fleet.#begin();
    return fleet;
  }

  get client() {
    return this.#cluster.client;
  }

  async #begin(): Promise<void> {
    const all = ['alone', ...this.names];
    for (const name of all) {
      const [log, trained] = [`${name}.sampled`, `${name}.trained`].map((file) => path.join(this.#folder, file));
      const config = fakeRun({ steps, log: log!, trained: trained!, stepMs: 300, sampleMs: 200 });
      await writeFile(path.join(this.#folder, `${name}.toml`), config);
    }
    await this.orchestrator(thisVersion);
    await this.#cluster.start('alone');
    this.#alone = (await this.#handle('alone').result()).policyDigest;
    for (const name of this.names) await this.#cluster.start(name);
    for (const name of this.names) await this.#cluster.status(name, ({ step }) => step >= 0);
  }

  async orchestrator(version: OtherVersion): Promise<void> {
    const command = this.command(version, 'worker', '--role', 'orchestrator');
    this.#orchestrators.set(version, command);
    this.#t.after(() => command.stop());
    await command.says(/of the workflow code: new runs begin under/);
  }

  command(version: OtherVersion, ...args: readonly string[]): RunningCommand {
    const environment = {
      ...process.env,
      TEMPORAL_ADDRESS: this.#cluster.address,
      RATCHET_CODE_ROOTS: path.join(repositoryFolder, 'test'),
    };
    return new RunningCommand(version, args, { folder: this.#folder, environment });
  }

  async ratchet(version: OtherVersion, ...args: readonly string[]): Promise<[number | null, string]> {
    const command = this.command(version, ...args);
    return [await command.ended, command.said];
  }

  /** A walk whose command is killed once it has said each of these, and typed again until it ends by itself. */
  async walkKilledAt(moments: readonly RegExp[], to: OtherVersion): Promise<string> {
    const said: string[] = [];
    let killed = 0;
    for (const moment of moments) {
      const command = this.command(to, 'upgrade');
      await Promise.race([command.says(moment), command.ended]);
      if (command.isRunning) killed += 1;
      await command.kill();
      said.push(`${command.said}(killed)`);
    }
    assert.ok(killed > 1, said.join('\n'));
    const [code, last] = await this.ratchet(to, 'upgrade');
    assert.equal(code, 0, last);
    return [...said, last].join('\n');
  }

  /** As a machine that is lost and comes back. */
  async killOrchestrator(version: OtherVersion): Promise<void> {
    await this.#orchestrators.get(version)!.kill();
    await this.orchestrator(version);
  }

  /** Its supervisor starts another one. */
  async killWorker(role: string): Promise<void> {
    const before = this.#cluster.pid(role)!;
    process.kill(before, 'SIGKILL');
    await until(`another ${role}`, () => ![before, null].includes(this.#cluster.pid(role) ?? null));
  }

  async isAllUnder(version: OtherVersion, said: string): Promise<void> {
    const wanted = await workflowCodeVersion(version.folder);
    let open = 0;
    for (const name of this.names) {
      const found = await this.#handle(name).describe();
      if (found.status.name !== 'RUNNING') continue;
      open += 1;
      assert.ok([wanted, null].includes(versionOf(found)), `${name} is not under ${wanted}\n${said}`);
      assert.deepEqual(await this.oldFlowsOf(name, version), [], said);
    }
    assert.ok(open > 1, 'runs were at work to the end of the walk');
  }

  /** Workflows of other versions that generate rounds of a run. */
  async oldFlowsOf(name: string, version: OtherVersion): Promise<string[]> {
    const wanted = await workflowCodeVersion(version.folder);
    const found: string[] = [];
    const query = "WorkflowType='playRounds' AND ExecutionStatus='Running'";
    for await (const { workflowId, runId } of this.client.workflow.list({ query })) {
      if (!isRolloutsWorkflowOf(name, workflowId)) continue;
      const flow = await this.client.workflow.getHandle(workflowId, runId).describe();
      if (flow.status.name === 'RUNNING' && ![wanted, null].includes(versionOf(flow))) found.push(workflowId);
    }
    return found;
  }

  /** Whatever died: exact ledgers, the weights of an undisturbed run, and no run begun anew more often than it was moved. */
  async judge({ walks }: { readonly walks: number }): Promise<void> {
    for (const name of this.names) {
      const { step, ledger, policyDigest, effectiveness } = await this.#handle(name).result();
      assert.deepEqual([step, ledger.isSound, policyDigest], [steps, true, this.#alone], name);
      const audit = auditLedger((await this.#commits(name)).map(({ outcomes }) => outcomes));
      assert.ok(audit.isSound, JSON.stringify(audit));
      const ends: string[] = [];
      for await (const { status } of this.client.workflow.list({ query: `WorkflowId='${name}'` }))
        ends.push(status.name);
      const moved = ends.filter((end) => end === 'TERMINATED').length;
      assert.ok(moved <= walks, `${name} was begun anew ${moved} times: ${ends.join(', ')}`);
      assert.deepEqual(ends.filter((end) => !/^(TERMINATED|COMPLETED|CONTINUED_AS_NEW)$/.test(end)), []); // prettier-ignore
      const trained = (await this.#trained(name)).map((line) => line.step);
      const again = trained.filter((one, i) => trained.indexOf(one) !== i);
      this.#t.diagnostic(`${name}: moved ${moved} times, steps trained again: ${again.join(', ')}; ${JSON.stringify(effectiveness.lost)}`); // prettier-ignore
    }
  }

  async #commits(name: string): Promise<StepCommit[]> {
    const file = (step: number) => path.join(this.#folder, 'outputs', name, `lineages/main/steps/step_${step}.json`);
    const all = Array.from({ length: steps + 1 }, (_, step) => readFile(file(step), 'utf8'));
    return (await Promise.all(all)).map((text) => JSON.parse(text) as StepCommit);
  }

  async #trained(name: string): Promise<TrainedLine[]> {
    const file = path.join(this.#folder, `${name}.trained`);
    if (!existsSync(file)) return [];
    const lines = (await readFile(file, 'utf8')).trimEnd().split('\n');
    return lines.map((line) => JSON.parse(line) as TrainedLine);
  }

  #handle(name: string) {
    return this.client.workflow.getHandle<typeof trainRun>(name);
  }
}
