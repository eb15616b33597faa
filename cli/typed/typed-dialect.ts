import { dialects } from '../../config/dialects/index.ts';
import { dialectOfCommand } from '../../config/dialects/prime-rl/prime-rl-files.ts';
import type { TomlFile } from '../../config/toml/parse-toml.ts';
import { refuseOtherKind } from '../start/other-kinds.ts';

/**
 * Dialect of `--dialect`, or of the typed command. Throws ConfigInvalid when a file says that it is for something else.
 */
export function typedDialect(
  toml: TomlFile,
  { dialect, command, isAlone }: { readonly dialect?: string; readonly command?: string; readonly isAlone: boolean },
): { readonly dialect?: string } {
  if (isAlone && dialect === undefined) refuseOtherKind(toml);
  const meant = dialect ?? dialectOfCommand(command, toml.table, dialects);
  return meant === undefined ? {} : { dialect: meant };
}
