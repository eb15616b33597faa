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
/** A gap's failpoint, and its passing. */
const columns = {
  opened: 'openPromptSearch.done',
  // The first prompt's rollouts are leased; what follows is quick, and one worker answers it.
  leased: 'evaluatePrompt.begun',
  played: 'evaluatePrompt.done',
  begun: 'searchPrompts.begun',
  answers: 'gepa.part',
  attempt: 'searchPrompts.done',
  closed: 'closePromptSearch.done',
} as const;
const passings: Readonly<Record<string, number>> = {
  'gepa.part': 5,
  'evaluatePrompt.begun': 2,
  'evaluatePrompt.done': 2,
};
const sizes = { seed: 4, maxCalls: 120, numTrain: 30, numVal: 20, isClassic: false };
/** As often in a row nothing else has happened in a process that is held: what was in flight has come and is stored. */
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

  for (const [column, failpoint] of Object.entries(columns)) {
    for (const { name, process: victim } of rows) {
      const isPart = failpoint === 'gepa.part';
      if (name === 'activity done twice' && isPart) continue; // no activity, and no part is written twice
      test(`${name}, ${column}`, async () => {
        const action = victim !== null ? 'hold' : name === 'activity fails' ? 'fail' : 'repeat';
        await rm(failpoints, { recursive: true, force: true });
        await mkdir(failpoints);
        await writeFile(
          path.join(failpoints, `${failpoint}.json`),
          JSON.stringify({ at: passings[failpoint] ?? 1, action }),
        );
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

  /** What came of a search, and what its server was asked for it. */
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
