import { isTable, type Table, tableOr } from '../toml/tables.ts';

/**
 * Translates evaluation files of verifiers 0.4 (its EvalConfig: one `[env]` with a taskset), and of prime-rl's `eval`,
 * with a list of `[[source]]`, into our own words. A field without a counterpart stays, and is refused by its name.
 */

/** The key that identifies such a file; undefined for any other file. */
export function shownAsVerifiersEval(table: Table): string | undefined {
  const { env, source } = table;
  if (isTable(env) && isTable(env['taskset'])) return '[env.taskset]';
  const isSource = (one: unknown) => isTable(one) && isTable(one['env']);
  return Array.isArray(source) && source.length > 0 && source.every(isSource) ? '[[source]]' : undefined;
}

/** Settings of its own processes, its screen and its platform. */
const withoutEffect: Readonly<Record<string, string>> = {
  run: 'results are kept in a folder that is called after what is evaluated',
  rich: '--plain on the command line says how progress is shown',
  push: 'results stay here; save_to_hf_hub uploads them to the Hugging Face Hub',
  dry_run: '`ratchet check` reads a file without running it',
  clean: 'results are never deleted',
  monitors: 'results are kept in files',
  log: 'logs are kept by role',
  env_vars: 'environment variables are set where the workers run',
};

/** The file in our words, and the fields without effect. */
export function fromVerifiersEval(written: Table): { readonly table: Table; readonly warnings: readonly string[] } {
  const dropped = Object.keys(withoutEffect).filter((key) => key in written);
  const kept = Object.fromEntries(Object.entries(written).filter(([key]) => !(key in withoutEffect)));
  const { env, source, client, concurrency, ...shared } = kept;
  const { base_url: url, api_key_var: key, headers, type: _, ...ofClient } = tableOr(client);
  const { max_inflight: most, ...pace } = tableOr(concurrency);
  const all = settingsOf({
    // verifiers' own defaults.
    num_rollouts: groupSizes.some((name) => name in shared) ? undefined : 1,
    select: {},
    ...shared,
  });
  const sources = Array.isArray(source) ? source.map(tableOr) : [{ env }];
  const table: Table = {
    ...all,
    ...given({ api_base_url: url, api_key_var: key, headers }),
    ...(Object.keys(ofClient).length > 0 ? { client: ofClient } : {}),
    ...(typeof most === 'number' ? { max_concurrent: most } : {}),
    eval: sources.map(({ env: its, ...own }) => ({ ...environmentOf(tableOr(its)), ...settingsOf(own) })),
  };
  const idle = Object.keys(pace).map(
    (name) => `concurrency.${name} has no effect here: as many rollouts are played at once as max_concurrent says`,
  );
  return {
    table,
    warnings: [...dropped.map((name) => `${name} has no effect here: ${withoutEffect[name]!}`), ...idle],
  };
}

const groupSizes = ['num_rollouts', 'group_size', 'rollouts_per_example', 'r'];

/** Settings of all evaluations, or of one. */
function settingsOf(settings: Table): Table {
  const { select, sampling, m, c, o, v, ...others } = settings;
  const size = groupSizes.map((name) => others[name]).find((one) => one !== undefined);
  const rest = Object.fromEntries(Object.entries(others).filter(([name]) => !groupSizes.includes(name)));
  const { limit, n, shuffle, s, seed, ...selection } = tableOr(select);
  const { max_completion_tokens: tokens, ...request } = tableOr(sampling);
  return {
    ...given({ model: m, max_concurrent: c, output_dir: o, verbose: v }),
    ...rest,
    ...given({ rollouts_per_example: size, shuffle: shuffle ?? s, shuffle_seed: seed }),
    ...(select === undefined ? {} : { num_examples: limit ?? n ?? -1 }),
    ...(Object.keys(selection).length > 0 ? { select: selection } : {}),
    ...(sampling === undefined ? {} : { sampling: { ...given({ max_tokens: tokens }), ...request } }),
  };
}

/** The taskset, and the harness of the one agent with its runtime. */
function environmentOf({ taskset, agent, ...others }: Table): Table {
  const { harness, runtime, ...ofAgent } = tableOr(agent);
  const program = { ...tableOr(harness), ...given({ runtime }) };
  return {
    ...given({ taskset }),
    ...(Object.keys(program).length > 0 ? { harness: program } : {}),
    ...(Object.keys(ofAgent).length > 0 ? { agent: ofAgent } : {}),
    ...others,
  };
}

function given(table: Table): Table {
  return Object.fromEntries(Object.entries(table).filter(([, value]) => value !== undefined));
}
