import { isTable, type Table } from '../../toml/tables.ts';
import { text } from '../../toml/values.ts';
import { filesOfVariables, setEnvFiles, setRunName } from '../common-words.ts';
import { ignored, type Own, together } from '../dialect.ts';
import { all, type Rows } from '../ours.ts';

/**
 * Hosted Training since prime 0.10: a file of prime-rl, for `rl` or `sft`, with additional keys that the command `prime
 * train` removes before prime-rl reads it.
 */
export const hostedKeys: Rows = {
  name: together('`name`, spelt as a run’s name', text()),
  env_file: together('`env_files`, the first of them', filesOfVariables()),
  env_files: together('`env_files`', filesOfVariables()),
  ...all('image_tag? source_ref?', ignored('it names the code of prime-rl that trains there', text())),
  'gpu_type?': ignored('it runs on the machines that its workers run on', text()),
  ...all('volume? volume_size?', ignored('a run is kept in its store: output_dir at the top', text())),
  'type?': ignored('what a file trains is seen from its tables', text()),
};

export function setHosted(written: Table, own: Own): void {
  if (!isTable(written['run'])) setRunName(own, written['name'], ['name']);
  setEnvFiles(written, own);
}
