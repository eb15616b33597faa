import { access } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import type { SearchSettings } from '../core/gepa/search-state.ts';
import { classicSettings, defaultSettings, mergeDefaults } from '../core/gepa/settings.ts';
import { editWorlds, searchByEdits } from './gepa-edits.ts';
import { playAll, recordOf, searchInWorld } from './gepa-loop.ts';
import { answerReflection, makeWorld, type World } from './gepa-world.ts';
import { measureWallTime } from './gepa-workflow.ts';
import { CannotMeasure, measurement, type Bench, type Figures } from './measurement.ts';
import { PeerProcess } from './peer-process.ts';
import { runProgram } from './run-project.ts';
import { mean, round } from './statistics.ts';

const peerProgram = fileURLToPath(new URL('peers/gepa_search.py', import.meta.url));

/**
 * Prompt search in the simulated world (gepa-world.ts), in one process: `classic` is gepa's search with a budget that is kept,
 * `default` is ours. Means over the seeds of the best prompt's full-validation score, for 50 and 20 validation examples and 200 and
 * 500 metric calls; `test_…` is the same prompt on 200 tasks that no search has seen.
 *
 * - Goals: classic about 0.299, 0.518 (val 50), 0.488, 0.772 (val 20), which is what gepa 0.1.4 has within its budget; default ≥ 0.45,
 *   0.75 and ≥ 0.62, 0.84.
 * - `reflection_calls`: of the reflection model, which are not metric calls, for val 50 and 500 calls.
 * - `over_budget`: searches that made more calls than they were to.
 * - `edits`: worlds that differ in what edits do (gepa-edits.ts), val 50, 500 and 200 calls: mean gain of the best prompt over the start, and how often
 *   it is worse than the start. Goals for 500 calls: gains ≥ 0.1, 0.13, 0.35, and worse in ≤ 7 of 60.
 * - `rounds`: how often a search waits for models, one after the other, when all that is open is asked at once (val 50, 500).
 * - `seconds_val50_500`: wall time of a search through the workflow, files and durability included, at 50 ms a request (goal: gepa's 3.61 s
 *   plus 20 %, on a quiet machine); `…_classic` beside it, which waits for one thing after the other by its nature. Three seeds.
 * - `gepa`: the package itself in the same worlds, where RATCHET_GEPA_PYTHON names a Python with it; `within_budget` is the best that it
 *   had validated before its budget was used up.
 */
export const gepa = measurement('gepa', 'what prompt search finds within its budget, beside gepa', measure)
  .option('--seeds <range>', 'worlds and searches', '0-59')
  .option('--components <n>', 'texts of the prompt', Number, 1)
  .option('--merge', 'candidates are merged as well')
  .option('--no-wall', 'without searches through the workflow')
  .addHelpText('after', '\nRATCHET_GEPA_PYTHON names a Python with gepa; see bench/peers/README.md');

interface Options {
  readonly seeds: string;
  readonly components: number;
  readonly merge?: boolean;
  readonly wall: boolean;
}

interface Case {
  readonly val: number;
  readonly train: number;
  readonly maxCalls: number;
}

const cases: readonly Case[] = [
  { val: 50, train: 100, maxCalls: 200 },
  { val: 50, train: 100, maxCalls: 500 },
  { val: 20, train: 60, maxCalls: 200 },
  { val: 20, train: 60, maxCalls: 500 },
];
const unseenTasks = 200;
const seedsThroughWorkflow = 3;
const kinds = { classic: classicSettings, default: defaultSettings };

interface Outcome {
  readonly val: number;
  readonly test: number;
  readonly calls: number;
  readonly reflections: number;
  readonly rounds: number;
}

async function measure(bench: Bench, options: Options): Promise<Figures> {
  const seeds = seedsOf(options.seeds);
  const figures: Record<string, Record<string, unknown>> = {};
  let overBudget = 0;
  for (const [kind, settingsOf] of Object.entries(kinds)) {
    const own: Record<string, unknown> = {};
    for (const one of cases) {
      bench.signal.throwIfAborted();
      bench.doing(`${kind}, ${nameOf(one)}`);
      const outcomes = seeds.map((seed) => search(makeWorldOf(seed, one, options), one, options, settingsOf));
      overBudget += outcomes.filter(({ calls }) => calls > one.maxCalls).length;
      addMeans(own, one, outcomes);
      bench.say(`${kind}, ${nameOf(one)}: ${String(own[nameOf(one)])}, unseen ${String(own[`test_${nameOf(one)}`])}`);
      await new Promise(setImmediate);
    }
    figures[kind] = own;
  }
  const edits = await measureEdits(bench, seeds);
  const reflections = { classic: figures['classic']?.['reflections'], default: figures['default']?.['reflections'] };
  const peer = await measurePeer(bench, seeds, options);
  const wall = options.wall ? await measureWallTime(bench, seeds.slice(0, seedsThroughWorkflow)) : {};
  return {
    seeds: options.seeds,
    ...figures,
    edits,
    gepa: peer,
    reflection_calls: reflections,
    over_budget: overBudget,
    ...wall,
  };
}

/** Worlds where an edit is mostly harmful, neutral or helpful. */
async function measureEdits(bench: Bench, seeds: readonly number[]): Promise<Figures> {
  const figures: Record<string, Record<string, unknown>> = {};
  for (const [kind, settingsOf] of Object.entries(kinds)) {
    for (const maxCalls of [500, 200]) {
      for (const { name, gain: _, ...world } of editWorlds) {
        bench.signal.throwIfAborted();
        bench.doing(`${kind}, ${name} edits, ${maxCalls} calls`);
        const found = seeds.map((seed) =>
          searchByEdits({ seed, ...world }, settingsOf({ seed, maxCalls, trainSize: 100, valSize: 50 })),
        );
        const own = (figures[`${kind}_${maxCalls}`] ??= {});
        const worse = found.filter(({ gain }) => gain < 0).length;
        own[name.replace(' ', '_')] = { gain: round(mean(found.map(({ gain }) => gain))), worse };
        await new Promise(setImmediate);
      }
      bench.say(`${kind}, ${maxCalls} calls, by edits: ${JSON.stringify(figures[`${kind}_${maxCalls}`])}`);
    }
  }
  return figures;
}

function makeWorldOf(seed: number, { train, val }: Case, { components }: Options): World {
  return makeWorld(seed, { components, train, val, test: unseenTasks });
}

function search(
  world: World,
  { train, val, maxCalls }: Case,
  { merge }: Options,
  settingsOf: typeof classicSettings,
): Outcome {
  const merging: Pick<SearchSettings, 'merge'> = { merge: merge === true ? mergeDefaults : null };
  const settings = settingsOf({ seed: world.seed, maxCalls, trainSize: train, valSize: val, ...merging });
  const { result, played, rounds } = searchInWorld(world, settings);
  if (result.coverage !== val) throw new Error(`The best prompt was scored on ${result.coverage} of ${val} examples.`);
  return {
    val: result.score!,
    test: testScore(world, result.texts),
    calls: played,
    reflections: result.reflections,
    rounds,
  };
}

function testScore(world: World, texts: Readonly<Record<string, string>>): number {
  return mean(playAll(world, texts, 'test').map(({ score }) => score));
}

function addMeans(figures: Record<string, unknown>, one: Case, outcomes: readonly Outcome[]): void {
  const meanOf = (what: keyof Outcome): number => mean(outcomes.map((outcome) => outcome[what]));
  figures[nameOf(one)] = round(meanOf('val'));
  figures[`test_${nameOf(one)}`] = round(meanOf('test'));
  if (one.val !== 50 || one.maxCalls !== 500) return;
  figures['reflections'] = round(meanOf('reflections'), 1);
  figures['rounds'] = round(meanOf('rounds'), 1);
}

function nameOf({ val, maxCalls }: Case): string {
  return `val${val}_${maxCalls}`;
}

/** `0-59`, `7`. */
function seedsOf(range: string): number[] {
  const match = /^(\d+)(?:-(\d+))?$/.exec(range);
  const [first, last] = [Number(match?.[1]), Number(match?.[2] ?? match?.[1])];
  if (match === null || last < first) throw new CannotMeasure(`--seeds is a range like 0-59, not "${range}".`);
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

const PeerLine = z.union([
  z.object({
    evaluate: z.object({
      texts: z.record(z.string(), z.string()),
      set: z.enum(['train', 'val']),
      examples: z.array(z.int()),
    }),
  }),
  z.object({ reflect: z.string() }),
  z.object({
    found: z.object({
      candidates: z.array(z.record(z.string(), z.string())),
      scores: z.array(z.number()),
      calls_before: z.array(z.int()),
      calls: z.int(),
      best: z.int(),
    }),
  }),
]);

/** The package gepa in the same worlds, or null where there is none. */
async function measurePeer(bench: Bench, seeds: readonly number[], options: Options): Promise<Figures | null> {
  const python = await findGepaPython(bench);
  if (python === null) return null;
  const peer = new PeerProcess(bench, python, [peerProgram], process.env);
  try {
    const figures: Record<string, unknown> = {};
    for (const one of cases) {
      bench.doing(`gepa, ${nameOf(one)}`);
      const found = [];
      for (const seed of seeds) found.push(await searchWithPeer(peer, makeWorldOf(seed, one, options), one, options));
      figures[nameOf(one)] = round(mean(found.map(({ val }) => val)));
      figures[`within_budget_${nameOf(one)}`] = round(mean(found.map(({ within }) => within)));
      figures[`test_${nameOf(one)}`] = round(mean(found.map(({ test }) => test)));
      figures[`calls_max_${nameOf(one)}`] = Math.max(...found.map(({ calls }) => calls));
      bench.say(`gepa, ${nameOf(one)}: ${String(figures[nameOf(one)])}`);
    }
    return figures;
  } finally {
    await peer.close();
  }
}

async function searchWithPeer(peer: PeerProcess, world: World, { train, val, maxCalls }: Case, { merge }: Options) {
  const asked = { start: world.start, train, val, budget: maxCalls, merge: merge === true, seed: world.seed };
  for (let question: Readonly<Record<string, unknown>> = asked; ;) {
    const line = PeerLine.parse(await peer.ask(question));
    if ('found' in line) {
      const { candidates, scores, calls_before, calls, best } = line.found;
      const isWithin = (i: number): boolean => calls_before[i]! + val <= maxCalls;
      const within = Math.max(...scores.filter((_, i) => isWithin(i)));
      return { val: scores[best]!, within, test: testScore(world, candidates[best]!), calls };
    }
    question = 'reflect' in line ? { text: answerReflection(world.seed, line.reflect) } : scored(world, line.evaluate);
  }
}

function scored(
  world: World,
  { texts, set, examples }: { texts: Record<string, string>; set: 'train' | 'val'; examples: number[] },
): Readonly<Record<string, unknown>> {
  const played = playAll(world, texts, set, examples);
  const records = played.map((one) =>
    Object.fromEntries(Object.keys(texts).map((component) => [component, recordOf(world, one, component)])),
  );
  return { scores: played.map(({ score }) => score), records };
}

async function findGepaPython(bench: Bench): Promise<string | null> {
  const python = process.env['RATCHET_GEPA_PYTHON'];
  if (!python) return null;
  try {
    await access(python);
    await runProgram(bench, python, ['-c', 'import gepa'], process.cwd());
  } catch (error) {
    throw new CannotMeasure(
      `RATCHET_GEPA_PYTHON=${python} cannot import gepa: ${String(error)}\n` +
        'Make an environment and name its interpreter:\n  pip install gepa==0.1.4',
    );
  }
  return python;
}
