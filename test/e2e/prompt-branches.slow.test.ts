/**
 * A model that obeys three system prompts, and an environment that rewards one of them and begins with another: a
 * branch of the training run finds the better one, tries it, and the run continues with it, whatever dies meanwhile. If
 * nothing helps, nothing changes. One run learns to obey; the others are forks of it.
 */
import { until } from '../eventually.ts';
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import type { WorkflowHandle } from '@temporalio/client';
import { decodeRows } from '../../store/objects.ts';
import { forkRun } from '../../runs/lineages/fork-run.ts';
import type { FailpointPlan } from '../../store/failpoints.ts';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { resolveStoreUri } from '../../store/index.ts';
import { layout } from '../../runs/layout.ts';
import type { ScoredGroup } from '../../core/rl/rollout/rollout.ts';
import type { StepPlan } from '../../core/rl/run-state.ts';
import { type RunEvent, type RunStatus, eventsQuery } from '../../workflows/control/messages.ts';
import type { trainRun } from '../../workflows/train-run.ts';
import { filesOfWorld, linkRatchet, openReflectionServer, type ReflectionServer, runFile } from './prompt-world.ts';
import { openSmallProject, repositoryFolder, type SmallProject } from './small-run.ts';

let project: SmallProject;
let failpoints: string;
let reflection: ReflectionServer;

before(async () => {
  reflection = await openReflectionServer();
  failpoints = await mkdtemp(path.join(tmpdir(), 'ratchet-failpoints-'));
  const url = `url = "${reflection.url}"`;
  project = await openSmallProject(
    {
      'better.toml': runFile(`reflection_model = "knows"\n${url}\nat_steps = [1]\nadopt = "if_better"`),
      'forked.toml': runFile(`reflection_model = "knows"\n${url}\nadopt = "never"`, 5),
      // Two environments, each with a branch of its own.
      'nothing.toml': runFile(`reflection_model = "guesses"\n${url}\ninterval = 2\nadopt = "if_better"`).replace(
        '[sft]',
        '[[env]]\nid = "./say.ts"\nname = "again"\n[sft]',
      ),
      'sick.toml': runFile(`reflection_model = "sick"\n${url}\nat_steps = [1]`, 2),
      'failing.toml': runFile(`reflection_model = "knows"\n${url}\nat_steps = [1]`),
      'asked.toml': runFile(`reflection_model = "knows"\n${url}\nadopt = "ask"`, 5),
      ...filesOfWorld(),
    },
    {},
    false,
    { RATCHET_FAILPOINTS: failpoints },
  );
  await linkRatchet(project.folder);
});
after(async () => {
  await project?.close();
  reflection?.close();
  await rm(failpoints, { recursive: true, force: true });
});

type Run = WorkflowHandle<typeof trainRun>;
const start = (name: string): Promise<Run> =>
  project.client.workflow.start<typeof trainRun>('trainRun', {
    workflowId: name,
    taskQueue: 'ratchet',
    workflowTaskTimeout: '5s',
    args: [`${name}.toml`],
  });

/** A run of its own file that begins at a checkpoint of the first one. */
async function fork(name: string, step: number): Promise<void> {
  const { folder: projectFolder } = project;
  const { spec } = await loadRunConfig(`${name}.toml`, { projectFolder, overrides: {} });
  const store = resolveStoreUri('outputs', projectFolder);
  const source = { config: path.join(projectFolder, `${name}.toml`), overrides: {} };
  await forkRun({
    from: { name: 'better', store },
    step,
    spec: { ...spec, store: { ...spec.store, uri: store } },
    source,
  });
}

/** The run stands still while its branch continues, so its duration means nothing. */
async function pausedAfter(name: string, step: number): Promise<Run> {
  const handle = await start(name);
  await until(`step ${step} of ${name}`, () => project.commit(name, step));
  await pause(handle);
  return handle;
}

/** A run that was begun a moment ago may not listen yet. */
async function pause(handle: Run): Promise<void> {
  await until('what is waited for', () =>
    handle.query<RunStatus>('status').then(
      () => true,
      () => false,
    ),
  );
  await handle.executeUpdate('pause', { args: ['for the branch'] });
}

const events = (handle: Run) => handle.query(eventsQuery, 0);

async function told(handle: Run, verdicts: readonly string[]): Promise<RunEvent> {
  for (;;) {
    const ended = (await events(handle)).findLast(({ values }) => 'verdict' in values);
    if (ended && verdicts.includes(String(ended.values['verdict']))) return ended;
    assert.notEqual(ended?.values['verdict'], 'failed', ended?.text);
    await delay(100);
  }
}

/** Holds a process at a failpoint, once, until `release`. */
async function hold(failpoint: string, at: number): Promise<void> {
  await writeFile(
    path.join(failpoints, `${failpoint}.json`),
    JSON.stringify({ at, action: 'hold' } satisfies FailpointPlan),
  );
}
const release = (failpoint: string): Promise<void> => writeFile(path.join(failpoints, `${failpoint}.released`), '');
const isHeld = (failpoint: string): boolean => existsSync(path.join(failpoints, `${failpoint}.fired.1`));
async function forget(): Promise<void> {
  for (const name of await readdir(failpoints)) await rm(path.join(failpoints, name), { recursive: true, force: true });
}

/** Returns when the supervisor has noticed. */
async function kill(role: string): Promise<void> {
  const { stack } = project;
  const before = stack.restarts()[role] ?? 0;
  process.kill(stack.pids()[role]!, 'SIGKILL');
  await until(`another ${role}`, () => (stack.restarts()[role] ?? 0) > before);
}

async function groupsOf(run: string, step: number, below = ''): Promise<ScoredGroup[]> {
  const folder = path.join(project.folder, 'outputs', run, below, `rollouts/step_${step}`);
  const names = (await readdir(folder, { recursive: true })).filter(layout.isScored);
  const files = await Promise.all(names.map((name) => readFile(path.join(folder, name))));
  return files.flatMap((bytes) => decodeRows<ScoredGroup>(bytes, folder));
}

const promptsOf = (groups: readonly ScoredGroup[]): (string | undefined)[] => [
  ...new Set(groups.flatMap(({ prompt, rollouts }) => [prompt, ...rollouts.map((rollout) => rollout.prompt)])),
];

function meanReward(groups: readonly ScoredGroup[]): number {
  const rewards = groups.flatMap(({ rollouts }) => rollouts.map(({ reward }) => reward ?? 0));
  return rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
}

const read = async (file: string): Promise<string> => readFile(path.join(project.folder, 'outputs', file), 'utf8');

test('a branch finds the prompt that its environment rewards, whoever dies meanwhile, and later groups are played with it; so are those of a fork', async () => {
  await hold('answerSearch.begun', 1);
  await hold('gepa.part', 3);
  await hold('recordTrial.begun', 1);
  const handle = await pausedAfter('better', 1);
  const deaths = [
    ['answerSearch.begun', 'policy server'],
    ['gepa.part', 'rollout worker'],
    ['recordTrial.begun', 'orchestrator worker'],
  ] as const;
  for (const [failpoint, role] of deaths) {
    await until(`the gap ${failpoint}`, () => isHeld(failpoint));
    await kill(role);
    await release(failpoint);
  }
  const { text, values } = await told(handle, ['taken', 'no better', 'nothing found']);
  await forget();
  assert.equal(values['verdict'], 'taken', text);
  assert.ok(Number(values['calls']) <= 60 && Number(values['low']) > 0, text);
  const child = await project.client.workflow.getHandle('better.gepa.say.v1').describe();
  assert.equal(child.status.name, 'COMPLETED');
  await handle.executeUpdate('resume');
  await handle.result();

  const { state, plan } = (await project.commit('better', 4))!;
  const inUse = state.prompts!['say']!;
  const digest = inUse.ref.sha256;
  assert.equal(await read(`better/${inUse.ref.key}`), 'COPY');
  assert.equal(state.pendingBranches, undefined);
  assert.equal((await project.commit('better', 1))!.state.prompts, undefined);
  const [early, late] = [await groupsOf('better', 1), await groupsOf('better', 4)];
  assert.deepEqual(promptsOf(early), [undefined]);
  assert.deepEqual(promptsOf(late), [digest], 'every group and every rollout says what it was played with');
  const { prompts = {} } = JSON.parse(await read(`better/${plan!.key}`)) as StepPlan;
  assert.deepEqual(Object.keys(prompts['say']!), [digest], 'and so does the plan of the step');
  for (const { rollouts } of late) {
    const prompts = new Set(rollouts.map(({ turns }) => turns[0]!.promptTokenIds.join(' ')));
    assert.equal(prompts.size, 1, 'a group has one prompt');
  }
  assert.ok(meanReward(late) > meanReward(early) + 0.3, `${meanReward(early)} before, ${meanReward(late)} after`);
  const results = await read('better/evals/say--better/step_4/results.jsonl');
  const row = JSON.parse(results.split('\n')[0]!) as { prompt: { content: string }[]; ratchet: { prompt: string } };
  assert.deepEqual([row.prompt[0]!.content, row.ratchet.prompt], ['COPY', digest]);
  const all = await events(handle);
  const evals = all.filter(({ kind }) => kind === 'eval').map((event) => event.text);
  // v2 was generated with either prompt, depending on when the pause came; with the new one, either may have ended
  // first.
  const under = evals.filter((line) => line.includes(`prompt ${digest.slice(0, 8)}`));
  assert.ok(
    under.some((line) => line.startsWith('eval v4 say')),
    evals.join('\n'),
  );
  assert.ok(
    under.some((line) => /, the first under it: compared with none before/.test(line)),
    evals.join('\n'),
  );

  await fork('forked', 4);
  await (await start('forked')).result();
  assert.deepEqual(promptsOf(await groupsOf('forked', 5)), [digest]);
  assert.equal(await read(`forked/${inUse.ref.key}`), 'COPY');
});

test('where nothing that is written helps, the prompt stays, at every interval and in every environment', async () => {
  const before = reflection.asked();
  await fork('nothing', 0);
  const handle = await pausedAfter('nothing', 2);
  const ended = async () => (await handle.query<RunStatus>('status')).branchesEnded ?? {};
  await until('the end of both', async () => Object.keys(await ended()).length === 2);
  for (const { verdict, text } of Object.values(await ended()))
    assert.match(verdict, /^(?:no better|nothing found)$/, text);
  await handle.executeUpdate('resume');
  await handle.result();
  assert.ok(reflection.asked() > before);
  assert.equal((await project.commit('nothing', 4))!.state.prompts, undefined);
  assert.deepEqual(promptsOf(await groupsOf('nothing', 4)), [undefined]);
});

test('a branch that fails harms nobody and says so; a run that fails takes its branch with it', async () => {
  await fork('sick', 0);
  const sick = await pausedAfter('sick', 1);
  const { text } = await told(sick, ['failed']);
  assert.match(text, /branch of v1 on say failed, and the run continues without it: .*no such key/);
  const { branchesEnded } = await sick.query<RunStatus>('status');
  assert.equal(branchesEnded!['say']!.text, text);
  await sick.executeUpdate('resume');
  assert.equal((await sick.result()).step, 2);

  await fork('failing', 0);
  await hold('answerSearch.begun', 1);
  const handle = await pausedAfter('failing', 1);
  await until('a search that began', () => isHeld('answerSearch.begun'));
  const { prompts } = await handle.query<RunStatus>('status');
  assert.deepEqual(
    prompts.map(({ environment, branch }) => [environment, branch?.step, branch?.workflow]),
    [['say', 1, 'failing.gepa.say.v1']],
  );
  // A rewind by another execution meanwhile, so that this one is refused.
  const origin = { run: 'failing', lineage: 'main', step: 0, sha256: '0' };
  const record = { schemaVersion: 1, lineage: 'l2', origin, request: 'x', begunAt: new Date().toISOString() };
  const file = path.join(project.folder, 'outputs/failing', layout.origin(2));
  await mkdir(path.dirname(file), { recursive: true });
  await writeFile(file, JSON.stringify(record));
  await handle.executeUpdate('resume');
  await assert.rejects(handle.result(), ({ cause }: Error) =>
    /is behind its store/.test(String((cause as Error).cause ?? cause)),
  );
  await release('answerSearch.begun');
  const child = project.client.workflow.getHandle('failing.gepa.say.v1');
  await assert.rejects(child.result());
  assert.equal((await child.describe()).status.name, 'CANCELLED');
  await forget();
});

test('a branch that is asked for offers what it found; a rewind takes the prompt back, and the branch under way with it', async () => {
  const ratchet = async (...args: readonly string[]): Promise<string> => {
    const env = { ...process.env, TEMPORAL_ADDRESS: project.stack.temporalAddress };
    const program = path.join(repositoryFolder, 'cli/ratchet.mjs');
    return (await promisify(execFile)(process.execPath, [program, ...args], { cwd: project.folder, env })).stdout;
  };
  await fork('asked', 0);
  const handle = await pausedAfter('asked', 1);
  await assert.rejects(ratchet('gepa', 'adopt', 'asked'), /no prompt that was found waits for a yes/);
  assert.match(await ratchet('gepa', 'branch', 'asked'), /Branched off v[12]: a better prompt is looked for on say/);
  const { text, values } = await told(handle, ['offered', 'no better', 'nothing found']);
  assert.equal(values['verdict'], 'offered', text);
  assert.match(
    await ratchet('status', 'asked'),
    /prompt +say: the environment's own\n +a better one waits for a yes, prompts.*ratchet-rl gepa adopt asked --env say/,
  );
  assert.match(await ratchet('gepa', 'adopt', 'asked', '--env', 'say'), /is its system prompt for groups/);
  await handle.executeUpdate('resume');
  await until('step 3', () => project.commit('asked', 3));
  await hold('answerSearch.begun', 1);
  await handle.executeUpdate('gepa-branch', { args: [null] });
  const again = handle.executeUpdate('gepa-branch', { args: ['say'] });
  await assert.rejects(again, ({ cause }: Error) => /under way already/.test(String(cause)));
  await handle.executeUpdate('rewind', { args: [1] });
  await handle.result();
  await release('answerSearch.begun');
  assert.deepEqual(promptsOf(await groupsOf('asked', 3)), [values['digest']]);
  assert.deepEqual(promptsOf(await groupsOf('asked', 3, 'lineages/l2')), [undefined]);
});
