import { sandboxTraits } from '../../../core/kinds/sandboxes.ts';
import { deadlineSecondsMax, sandboxClosingS, sandboxEndS } from '../../../core/limits.ts';
import { isEnvironmentFile } from '../../../core/names.ts';
import { sandboxLifeS } from '../../../core/settings/programs.ts';
import { agentKeys, isTaskFile, sandboxKeys, setupUsualS } from '../agents.ts';
import type { RatchetConfig } from '../index.ts';
import { problem, type Relations } from './problem.ts';

type Entry = RatchetConfig['env'][number] | NonNullable<NonNullable<RatchetConfig['eval']>['env']>[number];

/** Requirements of environments of kind `agent`, of others that have settings of one, and of the deadlines of all. */
export function* agentRelations({ env, eval: evaluation, budget }: RatchetConfig): Relations {
  const ofRun = { budget };
  const ofEvaluation = { budget, 'eval.budget': evaluation?.budget };
  for (const [table, entries] of Object.entries({ env, 'eval.env': evaluation?.env ?? [] })) {
    for (const [i, entry] of (entries as Entry[]).entries()) {
      const at = (key: string): string => `${table}.${i}.${key}`;
      yield* ofDeadlines(entry, at);
      yield* entry.kind === 'agent' ? ofAgent(entry, at, table === 'env' ? ofRun : ofEvaluation) : ofAnother(entry, at);
    }
  }
}

type At = (key: string) => string;

function* ofAnother(entry: Entry, at: At): Relations {
  const written = agentKeys.find((key) => (entry as Readonly<Record<string, unknown>>)[key] !== undefined);
  if (written === undefined) return;
  yield problem(
    [at(written), at('kind')],
    'kind = "agent" beside it: no other environment has such a setting',
    written,
  );
}

function* ofAgent(entry: Entry, at: At, budgets: Budgets): Relations {
  const { id, command, tasks, eval_tasks: evalTasks, eval_share: share } = entry;
  if (isEnvironmentFile(id))
    yield problem(at('id'), 'a name of your choice: with kind = "agent" the id is no file', JSON.stringify(id));
  if (command === undefined)
    yield problem([at('command'), at('kind')], 'the program beside kind = "agent", such as ["python3", "agent.py"]', undefined); // prettier-ignore
  if (tasks === undefined)
    yield problem([at('tasks'), at('kind')], 'the tasks beside kind = "agent": a file such as "./tasks.jsonl"', undefined); // prettier-ignore
  if (evalTasks !== undefined && share !== undefined)
    yield problem([at('eval_share'), at('eval_tasks')], 'either eval_tasks or a share of tasks', 'both');
  const isOfHub = [tasks, evalTasks].some((source) => source !== undefined && !isTaskFile(source));
  for (const key of ['subset', 'split'] as const) {
    if (entry[key] === undefined || isOfHub) continue;
    yield problem([at(key), at('tasks')], 'tasks = "OWNER/NAME" beside it: a file has no parts', JSON.stringify(entry[key])); // prettier-ignore
  }
  for (const key of ['args', 'agent', 'episode'] as const) {
    if (Object.keys(entry[key] ?? {}).length === 0) continue;
    yield problem([at(key), at('kind')], 'nothing: an agent has its command and its tasks', `a table ${key}`);
  }
  if (entry.resume !== undefined && (entry.models ?? []).length > 0)
    yield problem([at('resume'), at('models')], 'either [env.resume] or [[env.models]]: calls of other models before a snapshot would not be counted again', 'both'); // prettier-ignore
  if (entry.resume !== undefined && entry.max_turns !== undefined && entry.resume.every >= entry.max_turns)
    yield problem([at('resume.every'), at('max_turns')], `less than max_turns (${entry.max_turns}): a rollout ends before its first snapshot otherwise`, entry.resume.every); // prettier-ignore
  yield* ofSandbox(entry, at);
  yield* ofSandboxSeconds(entry, at, budgets);
  yield* ofScore(entry, at);
  yield* ofModels(entry, at);
}

/** A deadline that comes after that of the whole rollout never passes. */
function* ofDeadlines(entry: Entry, at: At): Relations {
  const { timeout, turn_timeout: turn, tool_timeout: tool, sandbox, score } = entry;
  const wall = entry.budget?.wall_seconds;
  const all = { timeout, turn_timeout: turn, tool_timeout: tool, 'budget.wall_seconds': wall, 'sandbox.setup_timeout': sandbox?.setup_timeout, 'score.timeout': score?.timeout }; // prettier-ignore
  for (const [key, value] of Object.entries(all))
    if (value !== undefined && value > deadlineSecondsMax)
      yield problem(at(key), `at most ${deadlineSecondsMax} seconds, 24 days`, value);
  if (timeout !== undefined && wall !== undefined && wall > timeout)
    yield problem([at('budget.wall_seconds'), at('timeout')], `at most timeout (${timeout}), which ends the rollout before it`, wall); // prettier-ignore
  const [seconds, by] = Math.min(timeout ?? Infinity, wall ?? Infinity) === timeout ? [timeout, 'timeout'] : [wall, 'budget.wall_seconds']; // prettier-ignore
  if (seconds === undefined) return;
  const setup = sandbox?.setup === undefined ? undefined : sandbox.setup_timeout;
  const within = { turn_timeout: turn, tool_timeout: tool, ...(setup === setupUsualS ? {} : { 'sandbox.setup_timeout': setup }) }; // prettier-ignore
  for (const [key, value] of Object.entries(within)) {
    if (value === undefined || value <= seconds) continue;
    yield problem([at(key), at(by)], `at most ${by} (${seconds}), which ends the rollout before it`, value);
  }
}

type Budgets = Readonly<Record<string, RatchetConfig['budget']>>;

/** All that a sandbox may take is reserved before there is one. */
function* ofSandboxSeconds({ timeout, budget, sandbox, score }: Entry, at: At, budgets: Budgets): Relations {
  const scoreS = score?.command === undefined ? 0 : score.timeout;
  const own = budget?.sandbox_seconds;
  const ends = scoreS + sandboxClosingS;
  if (own !== undefined && own <= ends) {
    const expected = `more than ${ends}: scoring may take ${scoreS} (score.timeout), and ending a sandbox ${sandboxClosingS}`;
    yield problem([at('budget.sandbox_seconds'), at('score.timeout')], expected, own);
  }
  const seconds = Math.min(timeout ?? Infinity, budget?.wall_seconds ?? Infinity);
  const setupS = sandbox?.setup === undefined ? 0 : sandbox.setup_timeout;
  const lifeS = Math.min(own ?? Infinity, sandboxLifeS(seconds === Infinity ? null : seconds, { setupS, scoreS }));
  for (const [table, around] of Object.entries(budgets)) {
    const limit = around?.sandbox_seconds;
    if (limit === undefined || limit >= lifeS) continue;
    const expected = `at least ${lifeS}: one sandbox may be there for so long (timeout, sandbox.setup_timeout, score.timeout and ${sandboxEndS} to end); or a smaller timeout of the environment`;
    yield problem([`${table}.sandbox_seconds`, at('timeout')], expected, limit);
  }
}

function* ofSandbox({ sandbox }: Entry, at: At): Relations {
  const { kind = 'namespace', network = 'route', image, quota, warm = 0 } = sandbox ?? {};
  if (quota !== undefined && warm > quota)
    yield problem([at('sandbox.warm'), at('sandbox.quota')], `at most quota (${quota}): those that stand ready count in it`, warm); // prettier-ignore
  for (const [key, owner] of Object.entries(sandboxKeys)) {
    const value = (sandbox as Readonly<Record<string, unknown>> | undefined)?.[key];
    if (value !== undefined && kind !== owner)
      yield problem([at(`sandbox.${key}`), at('sandbox.kind')], `kind = "${owner}" beside it`, `kind = "${kind}"`);
  }
  if (kind === 'ssh' && sandbox?.host === undefined)
    yield problem([at('sandbox.host'), at('sandbox.kind')], 'host beside kind = "ssh": where sandboxes are', undefined);
  if (kind === 'module' && sandbox?.import === undefined)
    yield problem([at('sandbox.import'), at('sandbox.kind')], 'import beside kind = "module": the file with the provider', undefined); // prettier-ignore
  const traits = sandboxTraits({ kind });
  if (network === 'route' && !traits.isolatesNetwork) {
    const expected = `"open": a sandbox of kind "${kind}" cannot be held to one route`;
    yield problem([at('sandbox.network'), at('sandbox.kind')], expected, `"${network}"`);
  }
  if (image !== undefined && !traits.takesImage) {
    const expected = `nothing: a sandbox of kind "${kind}" has the programs of its machine`;
    yield problem([at('sandbox.image'), at('sandbox.kind')], expected, JSON.stringify(image));
  }
}

function* ofScore({ score }: Entry, at: At): Relations {
  const ways = (['command', 'function', 'judge'] as const).filter((key) => score?.[key] !== undefined);
  const [first = 'command', second] = ways;
  const one = 'one of command, function and judge: how a rollout is scored';
  if (ways.length === 0) yield problem([at('score.command'), at('score'), at('kind')], one, undefined);
  if (second !== undefined) yield problem([at(`score.${second}`), at(`score.${first}`)], one, ways.join(' and '));
  if (score === undefined || ways.length !== 1) return;
  if (first !== 'command') {
    if (score.files !== undefined)
      yield problem([at('score.files'), at(`score.${first}`)], 'command beside it: nothing else runs in the sandbox', JSON.stringify(score.files)); // prettier-ignore
    if (score.reads !== 'output')
      yield problem([at('score.reads'), at(`score.${first}`)], 'command beside it: nothing else has an exit code', `"${score.reads}"`); // prettier-ignore
  }
}

function* ofModels({ models = [] }: Entry, at: At): Relations {
  for (const [j, { name }] of models.entries()) {
    if (models.findIndex((other) => other.name === name) === j) continue;
    yield problem(at(`models.${j}.name`), 'a name of its own: another of these models has this one', JSON.stringify(name)); // prettier-ignore
  }
}
