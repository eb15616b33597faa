import { RatchetError } from '../../core/errors.ts';

/** Command lines of other tools, pasted whole behind `ratchet`. */

/**
 * Translates commands: `uv run rl @ F` to `rl @ F`, `prime eval run E` to `eval run E`. Our own commands stay
 * unchanged. Throws ConfigInvalid, with what to type, for a command without a counterpart here.
 */
export function inOurCommands(words: readonly string[]): readonly string[] {
  const [first = '', ...rest] = words;
  if (/^[A-Z_]\w*=/.test(first)) throw variableBefore(first, rest);
  // `ratchet ratchet …`, `ratchet npx ratchet-rl …`
  if (first === 'npx' || first === 'ratchet' || first === 'ratchet-rl') return inOurCommands(rest);
  if (first === 'uvx') return inOurCommands(afterOptions(rest));
  if (first === 'uv') return ofUv(rest);
  if (first === 'prime') return ofPrime(rest);
  if (first === 'sft') return ['rl', ...rest]; // the file says what it trains
  const renamed = commandsOfVerifiers[first];
  if (renamed) return [...renamed, ...rest];
  const instead = notHere(first, rest);
  if (instead !== undefined) throw new RatchetError('ConfigInvalid', instead);
  return words;
}

/** Scripts that verifiers installs. */
const commandsOfVerifiers: Readonly<Record<string, readonly string[]>> = {
  'vf-eval': ['eval', 'run'],
  'vf-gepa': ['gepa', 'run'],
  'vf-tui': ['eval', 'tui'],
  'vf-init': ['env', 'init'],
  'vf-install': ['env', 'install'],
  'vf-setup': ['lab', 'setup', '--vf-rl'],
};

function ofUv([verb = '', ...rest]: readonly string[]): readonly string[] {
  if (verb === 'run') return inOurCommands(afterOptions(rest));
  const line = ['uv', verb, ...rest].join(' ').trim();
  throw new RatchetError(
    'ConfigInvalid',
    `${line} is a command of uv, which is typed without \`ratchet\`. Ratchet itself needs no Python package; environments in Python are installed with: npx ratchet-rl env install NAME`,
  );
}

/** Options of `uv run` that take a value. */
const valuedOptions = new Set(
  '-p --python -w --with --with-editable --with-requirements --env-file --extra --group --only-group --no-group --package --project --directory --index --index-url --default-index --extra-index-url --from --config-file --cache-dir'.split(
    ' ',
  ),
);

/** Skips the options of `uv run`, up to the command that it runs. */
function afterOptions(words: readonly string[]): readonly string[] {
  const [first, ...rest] = words;
  if (first === undefined || !first.startsWith('-')) return words;
  if (first === '--') return rest;
  return afterOptions(valuedOptions.has(first) ? rest.slice(1) : rest);
}

/** The commands of the prime CLI that have a counterpart, and the words that may follow each. */
const ofPrimeCli: Readonly<
  Record<string, { readonly ours: string; readonly known: readonly string[]; readonly byDefault?: string }>
> = {
  eval: { ours: 'eval', known: ['run', 'list', 'tui', 'show', 'compare', 'schedule', 'checkpoints'], byDefault: 'run' },
  gepa: { ours: 'gepa', known: ['run', 'show', 'stop', 'raise', 'branch', 'adopt'], byDefault: 'run' },
  env: { ours: 'env', known: ['init', 'install', 'uninstall', 'list', 'info', 'check'] },
  lab: { ours: 'lab', known: ['setup'] },
};

/** Words of the prime CLI for its servers, with what there is for them here. */
const ofItsServers: Readonly<Record<string, string>> = {
  'eval get': 'npx ratchet-rl eval show FOLDER says what an evaluation came to',
  'eval samples': 'npx ratchet-rl eval tui shows the rollouts of an evaluation',
  'eval push': 'results stay in outputs/evals; nothing is uploaded',
  'eval view': 'npx ratchet-rl eval tui shows the rollouts of an evaluation',
  'env push': 'the prime CLI itself publishes environments; type it without `ratchet`',
  'env pull': 'npx ratchet-rl env install OWNER/NAME fetches an environment of the Environments Hub',
  'rl list': 'npx ratchet-rl runs lists the runs of this folder',
  'rl logs': 'npx ratchet-rl logs RUN shows them',
  'rl metrics': 'npx ratchet-rl metrics RUN shows them',
  'rl rollouts': 'npx ratchet-rl rollouts RUN shows them',
  'rl stop': 'npx ratchet-rl stop RUN ends a run',
  'rl get': 'npx ratchet-rl status RUN says how far a run is',
  'rl checkpoints': 'npx ratchet-rl checkpoints RUN lists them',
  'rl models': 'any model of the Hugging Face Hub may be named here; npx ratchet-rl check FILE says what can train it',
  'rl init': 'npx ratchet-rl init writes example run files',
};

function ofPrime([verb = '', ...rest]: readonly string[]): readonly string[] {
  const [next = ''] = rest;
  const trains = verb === 'train' || verb === 'rl';
  const instead = ofItsServers[`${trains ? 'rl' : verb} ${next}`];
  if (instead !== undefined) throw refusedPrime([verb, next], instead);
  if (trains) return ['train', ...(next === 'run' ? rest.slice(1) : rest)];
  const command = ofPrimeCli[verb];
  if (command === undefined) {
    const byDefault =
      verb === 'login'
        ? 'no account is needed here; PRIME_API_KEY is the key for models of Prime Inference'
        : 'of the prime CLI, eval, gepa, env, lab, rl and train have counterparts here: npx ratchet-rl --help lists all commands';
    throw refusedPrime([verb], byDefault);
  }
  const { ours, known, byDefault } = command;
  const isCommand = known.includes(next) || next === '' || next === '-h' || next === '--help';
  return [ours, ...(isCommand || byDefault === undefined ? [] : [byDefault]), ...rest];
}

function refusedPrime(words: readonly string[], instead: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `prime ${words.join(' ').trim()} asks Prime Intellect's servers, which Ratchet does not do: ${instead}.`,
  );
}

/** Processes of prime-rl, which are roles of a run here, and programs that are not ours. */
function notHere(command: string, rest: readonly string[]): string | undefined {
  const line = [command, ...rest].join(' ');
  const file = rest.find((word) => word !== '@' && !word.startsWith('-')) ?? 'FILE';
  switch (command) {
    case 'orchestrator':
    case 'trainer':
    case 'inference': {
      const alone = `npx ratchet-rl rl --${command} @ ${file}`;
      const role = { orchestrator: 'orchestrator', trainer: 'train', inference: 'rollout' }[command];
      return `${command} is one of prime-rl's three processes. Here one command starts all of them: npx ratchet-rl rl @ ${file}. Where ${file} is the [${command}] table alone, name the files of the others beside it: ${alone} …. On a machine of its own: npx ratchet-rl worker --role ${role} (docs/guide/several-machines.md).`;
    }
    case 'torchrun':
    case 'accelerate':
    case 'deepspeed':
      return `${command} starts one process for each GPU. Here one command starts every process of a run: npx ratchet-rl train FILE. Further machines join with: npx ratchet-rl worker --role rollout (docs/guide/several-machines.md).`;
    case 'vllm':
    case 'vf-vllm':
      return `${command} is a server of its own: type "${command === 'vllm' ? line : 'vllm serve MODEL'}" without \`ratchet\`, and name it with -b URL. A run starts one by itself: [inference] kind = "vllm" (docs/guide/vllm.md).`;
    case 'bash':
    case 'tmux':
      return `"${line}" opens panes for prime-rl's processes. Here one command starts them and shows the run: npx ratchet-rl train FILE. In another terminal: npx ratchet-rl attach RUN, npx ratchet-rl logs RUN.`;
    case 'hf':
    case 'huggingface-cli':
    case 'wandb':
    case 'pip':
      return `"${line}" is typed without \`ratchet\`.`;
    default:
      return undefined;
  }
}

function variableBefore(variable: string, rest: readonly string[]): RatchetError {
  const name = variable.slice(0, variable.indexOf('='));
  return new RatchetError(
    'ConfigInvalid',
    `Command line: ${name} is set before the command: ${name}=… npx ratchet-rl ${inOurCommands(rest).join(' ')}`,
  );
}
