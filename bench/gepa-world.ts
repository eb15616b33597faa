import { createHash } from 'node:crypto';

/**
 * The simulated world of the GEPA benchmark: tasks that need rules, a model that follows rules in its prompt, and a model
 * that writes prompts anew from feedback. Everything is drawn by SHA-1 from a seed and what is asked, so the same question has the same
 * answer in every process and every implementation meets the same world. Its rules:
 *
 * - 16 rules R00 … R15 and 8 decoys D00 … D07. A task needs 1 to 4 rules; rule k is drawn with weight 1 ÷ (2 + k).
 * - A task's score is the share of its rules that were followed. A rule that is in the prompt is followed, except where a decoy in the
 *   prompt disturbs it (1 in 3 rules per decoy) or by a slip (5 %); one that is not, in 15 % of (task, rule).
 * - A reflection sees the rules of the prompt and those that were missing, and answers with one missing rule added (35 %), one added and one
 *   dropped (12 %), a decoy added (15 %), two added (8 %), or the same rules.
 */

export interface Task {
  readonly id: string;
  readonly input: string;
  /** Ids of rules, sorted. */
  readonly needs: readonly string[];
}

export interface World {
  readonly seed: number;
  readonly rules: Readonly<Record<string, string>>;
  readonly start: Readonly<Record<string, string>>;
  /** Which component a rule belongs to. */
  readonly owner: Readonly<Record<string, string>>;
  readonly train: readonly Task[];
  readonly val: readonly Task[];
  readonly test: readonly Task[];
}

export interface WorldSizes {
  readonly components: number;
  readonly train: number;
  readonly val: number;
  readonly test: number;
}

const ruleCount = 16;
const decoyCount = 8;
const followedAnyway = 0.15;
const slips = 0.05;
const disturbs = 1 / 3;
const rulesPerTask = 4;
const opening = 'You are a careful assistant.';
const verbs = 'State,Check,Quote,Round,Convert,List,Name,Verify'.split(',');
const nouns = (
  'the units,every source,the final sum,each step,the date,all limits,the currency,edge cases,' +
  'the input size,the time zone,both bounds,the sign,the method,one example,the remainder,the conclusion'
).split(',');

export function makeWorld(seed: number, sizes: WorldSizes): World {
  const components = Array.from({ length: sizes.components }, (_, i) => `part_${i}`);
  const names = sizes.components === 1 ? ['system_prompt'] : components;
  const rules = Array.from({ length: ruleCount }, (_, k) => numbered('R', k));
  const tasks = (set: string, count: number): Task[] => Array.from({ length: count }, (_, i) => makeTask(seed, set, i));
  return {
    seed,
    rules: Object.fromEntries(rules.map((rule) => [rule, wordsOf(rule)])),
    start: Object.fromEntries(names.map((name) => [name, opening])),
    owner: Object.fromEntries(rules.map((rule, k) => [rule, names[k % names.length]!])),
    train: tasks('train', sizes.train),
    val: tasks('val', sizes.val),
    test: tasks('test', sizes.test),
  };
}

/** Answer of the task model. Its last line names the rules it followed. */
export function answerTask(seed: number, system: string, user: string): string {
  const asked = /TASK (train|val|test)-(\d+)/.exec(user);
  if (asked === null) return 'FOLLOWED: none';
  const [, set, index] = asked as unknown as [string, string, string];
  const task = `${set}-${index}`;
  const present = [...new Set(Array.from(system.matchAll(/\[([RD]\d\d)\]/g), ([, id]) => id!))].sort();
  const decoys = present.filter((id) => id.startsWith('D'));
  const isFollowed = (rule: string): boolean => {
    if (!present.includes(rule)) return draw(seed, task, rule, 'base') < followedAnyway;
    if (decoys.some((decoy) => draw(seed, decoy, rule, 'disturb') < disturbs)) return false;
    return draw(seed, present.join(','), task, rule, 'slip') >= slips;
  };
  const followed = neededRules(seed, set, Number(index)).filter(isFollowed);
  return `The report for ${task} is done.\nFOLLOWED: ${followed.join(' ') || 'none'}`;
}

/**
 * Answer of the reflection model to a request with the current text and the feedback. `variant` = the request's seed.
 */
export function answerReflection(seed: number, request: string, variant = 0): string {
  const current = [...new Set(Array.from(request.matchAll(/^- \[([RD]\d\d)\]/gm), ([, id]) => id!))];
  const missing = Array.from(request.matchAll(/MISSING: \[(R\d\d)\]/g), ([, id]) => id!)
    .filter((id) => !current.includes(id))
    .sort();
  const rules = changeRules(current, missing, (tag) =>
    draw(seed, [...current].sort().join(','), missing.join(','), variant, tag),
  );
  const lines = [...new Set(rules)].map((id) => `- [${id}] ${wordsOf(id)}`);
  return ['Here is the new instruction.', '```', opening, lines.join('\n'), '```'].join('\n');
}

/** Score of a task's answer, and the evaluator's feedback for the reflection model. */
export function judge(task: Task, answer: string, rules: World['rules']): { score: number; feedback: string[] } {
  const followed = (/FOLLOWED: (.*)/.exec(answer)?.[1] ?? '').split(/\s+/);
  const missing = task.needs.filter((rule) => !followed.includes(rule));
  return {
    score: 1 - missing.length / task.needs.length,
    feedback: missing.map((rule) => `MISSING: [${rule}] ${rules[rule]}`),
  };
}

function changeRules(current: readonly string[], missing: readonly string[], at: (tag: string) => number): string[] {
  const pick = (from: readonly string[], tag: string): string | undefined => from[Math.floor(at(tag) * from.length)];
  const what = at('op');
  const added = pick(missing, 'a');
  if (added === undefined || what >= 0.7) return [...current];
  if (what < 0.35) return [...current, added];
  if (what < 0.47) {
    const dropped = pick(current, 'drop');
    return [...current.filter((rule) => rule !== dropped), added];
  }
  if (what < 0.62) return [...current, numbered('D', Math.floor(at('decoy') * decoyCount))];
  const second = pick(
    missing.filter((rule) => rule !== added),
    'b',
  );
  return second === undefined ? [...current, added] : [...current, added, second];
}

function makeTask(seed: number, set: string, index: number): Task {
  const id = `${set}-${index}`;
  const input = `TASK ${id}: produce the report for case ${index} of the ${set} set.`;
  return { id, input, needs: neededRules(seed, set, index) };
}

function neededRules(seed: number, set: string, index: number): string[] {
  const left = Array.from({ length: ruleCount }, (_, k) => k);
  const count = 1 + Math.floor(draw(seed, set, index, 'n') * rulesPerTask);
  const needed = Array.from({ length: count }, (_, j) => {
    const weights = left.map((k) => 1 / (2 + k));
    let rest = draw(seed, set, index, 'pick', j) * weights.reduce((sum, weight) => sum + weight, 0);
    const at = weights.findIndex((weight, i) => {
      if (i === left.length - 1 || rest < weight) return true;
      rest -= weight;
      return false;
    });
    return numbered('R', left.splice(at, 1)[0]!);
  });
  return needed.sort();
}

function wordsOf(id: string): string {
  const k = Number(id.slice(1));
  const noun = nouns[k % nouns.length]!;
  return id.startsWith('R') ? `${verbs[k % verbs.length]!} ${noun}.` : `Ignore ${noun} when short on space.`;
}

function numbered(letter: string, k: number): string {
  return letter + String(k).padStart(2, '0');
}

/** A number in [0, 1) for a key. */
function draw(...key: readonly (string | number)[]): number {
  return createHash('sha1').update(key.join('\u0001')).digest().readUInt32BE(0) / 2 ** 32;
}
