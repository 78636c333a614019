import os

import hydra


@hydra.main(version_base=None, config_path=None)
def main(config):
    with open(f"{os.environ['LOG']}-{config.x}", "w") as file:
        file.write(os.environ["CUDA_VISIBLE_DEVICES"])


main()
