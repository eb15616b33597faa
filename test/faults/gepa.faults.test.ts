/** The fault matrix of a search for a prompt: a fault (row) strikes in a gap between something done and the moment anybody knows of it. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { type GepaServer, type GepaStats, startGepaServer } from '../../bench/gepa-server.ts';
import { inputOf, startSearchOf } from '../../bench/gepa-workflow.ts';
import type { PromptSearchResult } from '../../core/gepa/prompt-search.ts';
import { answersIn } from '../e2e/gepa-answers.ts';
import { openSmallProject, type SmallProject } from '../e2e/small-run.ts';
import { until } from '../eventually.ts';

const processes = ['rollout worker', 'orchestrator worker', 'Temporal server'] as const;
const rows = [
  ...processes.map((process) => ({ name: `${process} killed`, process })),
  { name: 'activity fails', process: null },
  { name: 'activity done twice', process: null },
] as const;
/** Leases of the first prompt's rollouts; what follows is quick, and one lease has the whole search. */
const firstLeases = 7;
/** A gap's failpoint, and its passing. */
const columns = {
  opened: { failpoint: 'openPromptSearch.done', at: 1 },
  leased: { failpoint: 'answerSearch.begun', at: 2 },
  played: { failpoint: 'answerSearch.done', at: 2 },
  begun: { failpoint: 'answerSearch.begun', at: firstLeases + 1 },
  answers: { failpoint: 'gepa.part', at: 5 },
  attempt: { failpoint: 'answerSearch.done', at: firstLeases + 1 },
  closed: { failpoint: 'closePromptSearch.done', at: 1 },
} as const;
const sizes = { seed: 4, maxCalls: 120, numTrain: 30, numVal: 20, isClassic: false };
/** After so many looks without a change, what was in flight in a held process has arrived and is stored. */
const looks = { needed: 4, apartMs: 150 };

describe('a search for a prompt comes out the same, and asks for nothing twice that was answered', () => {
  let project: SmallProject;
  let server: GepaServer;
  let failpoints: string;
  let undisturbed: Played;
  before(async () => {
    failpoints = await mkdtemp(path.join(tmpdir(), 'ratchet-failpoints-'));
    project = await openSmallProject({}, {}, false, { RATCHET_FAILPOINTS: failpoints });
    server = await startGepaServer({ latencyMs: 5 });
    undisturbed = await play('undisturbed', async () => undefined);
  });
  after(async () => {
    await server?.close();
    await project?.close();
    await rm(failpoints, { recursive: true, force: true });
  });

  for (const [column, { failpoint, at }] of Object.entries(columns)) {
    for (const { name, process: victim } of rows) {
      const isPart = failpoint === 'gepa.part';
      if (name === 'activity done twice' && isPart) continue; // no activity, and no part is written twice
      test(`${name}, ${column}`, async () => {
        const action = victim !== null ? 'hold' : name === 'activity fails' ? 'fail' : 'repeat';
        await rm(failpoints, { recursive: true, force: true });
        await mkdir(failpoints);
        await writeFile(path.join(failpoints, `${failpoint}.json`), JSON.stringify({ at, action }));
        const id = `${column}-${name}`.toLowerCase().replaceAll(/[^a-z]+/g, '-');
        const disturbed = await play(id, async (quiet) => {
          await until(`the gap ${failpoint}`, () => existsSync(path.join(failpoints, `${failpoint}.fired.1`)));
          if (victim === null) return;
          await quiet(path.join(searches(), id));
          const pid = project.stack.pids()[victim]!;
          process.kill(pid, 'SIGKILL');
          await until(`another ${victim}`, () => ![null, undefined, pid].includes(project.stack.pids()[victim]));
          await writeFile(path.join(failpoints, `${failpoint}.released`), '');
        });
        assert.deepEqual(disturbed, undisturbed);
      });
    }
  }

  function searches(): string {
    return path.join(project.folder, 'outputs/gepa/gepa-world--sim');
  }

  /** Result of a search, and the requests to its server. */
  async function play(
    id: string,
    during: (quiet: (folder: string) => Promise<void>) => Promise<void>,
  ): Promise<Played> {
    const folder = searches();
    const before = await server.stats();
    const handle = await startSearchOf(project.client, project.folder, inputOf(sizes, { server, folder, id }));
    await during(async (own) => {
      let quiet = 0;
      await until('all that was answered in the store', async () => {
        await delay(looks.apartMs);
        const now = await server.stats();
        const isStored = now.inflight === 0 && answered(now) - answered(before) === (await answersIn(own));
        quiet = isStored ? quiet + 1 : 0;
        return quiet >= looks.needed;
      });
    });
    const { best, bestScore, bestPrompt, calls, reflections, candidates, iterations, stopReason } =
      await handle.result();
    const after = await server.stats();
    const prompt = bestPrompt!.sha256;
    const result = { best, bestScore, calls, reflections, candidates, iterations, stopReason, prompt };
    return { result, answered: answered(after) - answered(before) };
  }
});

/** A process out of breath may ask for more right before it is killed: that is cut off. */
function answered({ task, reflect, inflight, cut_off }: GepaStats): number {
  return task + reflect - inflight - cut_off;
}

interface Played {
  readonly result: Pick<
    PromptSearchResult,
    'best' | 'bestScore' | 'calls' | 'reflections' | 'candidates' | 'iterations' | 'stopReason'
  > & { readonly prompt: string };
  /** Task calls and reflections. */
  readonly answered: number;
}
